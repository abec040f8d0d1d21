"""The machine as programs in a sandbox see it: as many CPUs and as much memory as the session has; its name.

Files that stand in the place of the kernel's own, written once. What is true when they are written stays
true: how many CPUs there are, how much memory in all. How much of it is in use the cgroup's files tell.
"""

from __future__ import annotations

import re
from pathlib import Path

HOSTNAME = "sandbox"
_KIB = 1 << 10
# Engines write such files, or leave them empty, as their release has it for containers without network.
_HOSTS = f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost ip6-localhost ip6-loopback\n"


def write_machine(place: Path, cpus: int, memory: int) -> None:
    """Files named as those below /proc and /etc which they stand for."""
    place.mkdir(exist_ok=True)
    place.chmod(0o755)
    files = {"cpuinfo": _cpuinfo(cpus), "stat": _stat(cpus), "meminfo": _meminfo(memory)}
    files |= {"hostname": f"{HOSTNAME}\n", "hosts": _HOSTS}
    for name, text in files.items():
        (place / name).write_text(text)
        (place / name).chmod(0o444)


def _cpuinfo(cpus: int) -> str:
    """The first so many of the host's; where it has fewer, the last one again."""
    host = Path("/proc/cpuinfo").read_text().strip().split("\n\n")
    blocks = [host[min(number, len(host) - 1)] for number in range(cpus)]
    numbered = (re.sub(r"(?m)^(processor\s*:).*", rf"\1 {at}", block) for at, block in enumerate(blocks))
    return "".join(f"{block}\n\n" for block in numbered)


def _stat(cpus: int) -> str:
    """When the host was started, as programs need it; how busy it is concerns nobody in a sandbox."""
    idle = "0 0 0 0 0 0 0 0 0 0"
    booted = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    lines = [f"cpu  {idle}", *(f"cpu{number} {idle}" for number in range(cpus)), "intr 0", "ctxt 0", booted]
    return "\n".join([*lines, "processes 0", "procs_running 1", "procs_blocked 0", f"softirq {idle} 0", ""])


def _meminfo(memory: int) -> str:
    sizes = dict.fromkeys(("MemTotal", "MemFree", "MemAvailable"), memory // _KIB)
    sizes |= dict.fromkeys(("Buffers", "Cached", "SwapCached", "Active", "Inactive"), 0)
    sizes |= dict.fromkeys(("SwapTotal", "SwapFree", "Dirty", "Writeback", "AnonPages", "Mapped"), 0)
    sizes |= dict.fromkeys(("Shmem", "Slab", "SReclaimable", "SUnreclaim", "PageTables"), 0)
    return "".join(f"{name + ':':<16}{size:>8} kB\n" for name, size in sizes.items())
