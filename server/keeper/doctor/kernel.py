"""The kernel's settings, which `sandboxctl sysctl` raises, and its clock."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

from server.keeper.doctor import MAJOR, MINOR, NOTE, Finding, judged, unknown

# Name, least value, what for. Only ever more is better.
SYSCTLS = (
    ("kernel.pty.max", 65536, "terminals are shared by the whole host"),
    ("kernel.pid_max", 131072, "process numbers are shared by the whole host"),
    ("fs.protected_hardlinks", 1, "links planted in directories that others write to"),
    ("fs.protected_symlinks", 1, "links planted in directories that others write to"),
    ("fs.protected_fifos", 1, "pipes planted in directories that others write to"),
    ("fs.protected_regular", 1, "files planted in directories that others write to"),
    ("kernel.kptr_restrict", 1, "kernel addresses help an attacker"),
    ("kernel.dmesg_restrict", 1, "the kernel's messages help an attacker"),
    ("kernel.perf_event_paranoid", 2, "counters of the machine help an attacker"),
    ("kernel.io_uring_disabled", 1, "a large, young part of the kernel"),
    ("kernel.unprivileged_bpf_disabled", 1, "a large part of the kernel"),
)
_ADVICE = "sandboxctl sysctl, as root: quickstart and the keeper's unit do so at each start"
_UNSYNCHRONISED = 0x40
_DRIFT_SECONDS = 5.0


def sysctls(root: Path) -> Iterator[Finding]:
    for name, least, why in SYSCTLS:
        found = read_setting(root, name)
        if found is None:  # a kernel without the thing itself
            yield Finding(f"sysctl.{name}", "ok", "this kernel has no such setting", f"{least} or more")
        else:
            advice = f"{_ADVICE} ({why})"
            yield judged(f"sysctl.{name}", found >= least, MINOR, found, f"{least} or more", advice)


def setting_path(root: Path, name: str) -> Path:
    return root / "proc/sys" / name.replace(".", "/")


def read_setting(root: Path, name: str) -> int | None:
    return _read(setting_path(root, name))


def user_namespaces(root: Path) -> Iterator[Finding]:
    """Volumes are shown to each session under its own uid by way of one."""
    most = _read(root / "proc/sys/user/max_user_namespaces")
    yield judged(
        "kernel.user_namespaces",
        most != 0 and (root / "proc/self/ns/user").exists(),
        MAJOR,
        "none can be made" if most == 0 else "can be made by the keeper",
        "can be made by the keeper",
        "sysctl user.max_user_namespaces=1000: workspaces are mapped to sessions with them",
    )


def clock(engine: float | None, asked: tuple[float, float]) -> Iterator[Finding]:
    """The engine's time, and this machine's before and after it was asked."""
    synchronised = _is_synchronised()
    yield judged(
        "clock.synchronised",
        synchronised,
        NOTE,
        "by a time server" if synchronised else "the kernel knows of no time server",
        "by a time server",
        "apt-get install systemd-timesyncd (or chrony): leases, tickets and certificates count on the time",
    )
    if engine is None:
        yield unknown("clock.engine", "the engine does not tell", "upgrade Docker Engine", NOTE)
        return
    drift = max(asked[0] - engine - 1, engine - asked[1], 0.0)  # it tells whole seconds
    yield judged(
        "clock.engine",
        drift <= _DRIFT_SECONDS,
        MAJOR,
        f"{drift:.0f} s from this machine's",
        f"within {_DRIFT_SECONDS:.0f} s",
        "synchronise both machines, or use the engine of this one",
    )


def _is_synchronised() -> bool:
    """As the kernel has it, whichever program keeps the time. The status is at byte 40 of struct timex."""
    timex = (ctypes.c_long * 64)()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    status = ctypes.cast(timex, ctypes.POINTER(ctypes.c_int))[10]
    return state != -1 and not status & _UNSYNCHRONISED


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
