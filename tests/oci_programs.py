"""The OCI runtimes that tests try, as programs that an engine can be given."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

UNIFIED = "/sys/fs/cgroup/unified"


def crun(place: Path) -> str:
    """Debian's, of the engine under test. From hosts with hybrid control groups, which it refuses,
    the new half is hidden."""
    program = shutil.which(
        "crun", path=f"{os.environ.get('TEST_ENGINE_PROGRAMS', '/usr/bin')}:/usr/bin:/usr/sbin:/usr/local/bin"
    )
    assert program, "crun is missing: apt-get install crun"
    if not os.path.ismount(UNIFIED):
        return program
    hidden = f'umount {UNIFIED}; exec {program} "$@"'
    return _script(place / "crun", f"unshare --mount --propagation slave sh -c '{hidden}' crun")


def runsc(place: Path) -> str:
    """gVisor's, as docs/security.md says to register it. TEST_RUNSC says where it is, if not in the PATH."""
    program = os.environ.get("TEST_RUNSC") or shutil.which("runsc", path="/usr/bin:/usr/local/bin")
    assert program and os.access(program, os.X_OK), "runsc is missing: apt-get install runsc"
    return _script(place / "wall", f"{program} --platform=systrap --network=none --host-uds=create")


def refusing(place: Path) -> str:
    """As crun does where it does not work."""
    return _script(place / "refusing", "sh -c 'echo unknown host >&2; exit 1'")


def _script(path: Path, command: str) -> str:
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    path.chmod(0o755)
    return str(path)
