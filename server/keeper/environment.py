"""The variables that every program in a sandbox finds, whatever its session adds."""

from __future__ import annotations

import math

BASE_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/workspace",
    "USER": "user",
    "LOGNAME": "user",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "xterm-256color",
}


def cpu_env(cpus: float) -> dict[str, str]:
    """What tells programs how many threads make sense. coreutils' nproc heeds the first one too."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS")
    return dict.fromkeys((*names, "GOMAXPROCS", "PYTHON_CPU_COUNT"), str(math.ceil(cpus)))
