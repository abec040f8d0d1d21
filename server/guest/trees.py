"""Trees of processes: finding what a command has started, signalling it, and ending all of it.

PID 1 inherits every orphan of the container. A child that left its tree with a double fork is still
recognised by a mark that no unprivileged process can raise again: the hard limit RLIMIT_RTTIME of the
command that started it, which `/proc/PID/limits` shows to everybody.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Callable, NamedTuple

_KILL_DEADLINE = 2.0
_TICKS = os.sysconf("SC_CLK_TCK")


class _Stat(NamedTuple):
    parent: int
    started: int


def now_ticks() -> int:
    """The clock that process start times are told in."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)


def kill_tree(root: int, mark: int, since: int, spare_root: bool) -> None:
    """End every process that descends from `root`, or carries `mark`, and began at or after `since`.

    Stop first, kill after: a fork bomb that is only killed outruns the killer.
    """
    itself = set() if spare_root else {root}
    _kill(lambda: descendants(root, mark, since) | itself)


def kill_all_but(spared: set[int]) -> None:
    """End every process of the sandbox's user but these."""
    _kill(lambda: everything() - spared)


def everything() -> set[int]:
    return set(_table()) - {1}


def stop_all_but(spared: set[int]) -> None:
    """Nothing of the user's moves on but these, until it is continued or killed."""
    _stop(lambda: everything() - spared)


def _kill(find: Callable[[], set[int]]) -> None:
    signal_all(_stop(find), signal.SIGKILL)


def _stop(find: Callable[[], set[int]]) -> set[int]:
    deadline = time.monotonic() + _KILL_DEADLINE
    stopped: set[int] = set()
    while time.monotonic() < deadline:
        fresh = find() - stopped
        if not fresh:
            break
        signal_all(fresh, signal.SIGSTOP)
        stopped |= fresh
    return stopped


def signal_tree(root: int, mark: int, since: int, *numbers: int, spare_root: bool = False) -> None:
    """Send signals to `root` and to what it has started since: what it started before is not meant."""
    pids = descendants(root, mark, since)
    for number in numbers:
        signal_all(pids if spare_root else {root} | pids, number)


def interrupt_tree(root: int, mark: int, since: int) -> None:
    """As Ctrl-C does: `root` and what it has started since are interrupted at the same moment.

    To a bash it is no interruption unless the child that it waits for dies of it. So it is held until its
    child is found and has been told: one that starts programs in a loop would be waiting for another by then.
    """
    signal_all({root}, signal.SIGSTOP)
    pids = descendants(root, mark, since)
    signal_all({root}, signal.SIGINT)
    signal_all(pids, signal.SIGINT)
    signal_all({root} | pids, signal.SIGCONT)


def signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def descendants(root: int, mark: int, since: int) -> set[int]:
    """What `root` has started since, also what has left its tree; without `root` itself."""
    table = _table()
    children: dict[int, list[int]] = {}
    for pid, stat in table.items():
        children.setdefault(stat.parent, []).append(pid)
    found = {pid for pid in children.get(1, []) if table[pid].started >= since and _mark_of(pid) == mark}
    waiting = [root, *found]
    while waiting:
        for pid in children.get(waiting.pop(), []):
            if table[pid].started >= since and pid not in found:
                found.add(pid)
                waiting.append(pid)
    found.discard(root)
    return found


def _table() -> dict[int, _Stat]:
    table = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if fields[0] not in (b"Z", b"X"):
            table[int(name)] = _Stat(parent=int(fields[1]), started=int(fields[19]))
    return table


def _mark_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            for line in file:
                if line.startswith(b"Max realtime timeout"):
                    hard = line.split()[4]
                    return int(hard) if hard.isdigit() else 0
    except OSError:
        pass
    return 0
