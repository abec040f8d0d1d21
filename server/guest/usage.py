"""What a command costs: CPU seconds, and the largest resident size of one of its processes.

A process of its own is accounted for by the kernel when it is reaped. Inside an interpreter that stays, the
CPU time is the interpreter's own and its children's between two moments; memory is looked at when a caller
asks and at intervals that grow to a second, so what lives shorter than that may be missed.
"""

from __future__ import annotations

import os
import resource
import time
from typing import Callable, NamedTuple

from .processes import Child
from .trees import descendants

_FIRST_LOOK = 0.05
_LONGEST_PAUSE = 1.0
_NOTICED = 0.02  # seconds: two ticks of the clock that CPU time is told in
_TICKS = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    cpu_seconds: float
    peak_memory: int | None


class Meter:
    """`account` tells what an interpreter has spent in all; a process of its own needs none."""

    def __init__(
        self, child: Child, since: int, kept: bool, account: Callable[[], float] | None = None
    ) -> None:
        self._child = child
        self._account = account
        self._began = time.monotonic()
        self.since = since
        self._kept = kept
        self._spent = 0.0  # by the interpreter, before this command
        self._peak = 0
        self._seen = 0.0
        self._pause = _FIRST_LOOK
        self.next_look = self._began + _FIRST_LOOK

    def begin(self) -> None:
        """Just after the interpreter got its orders: it has spent next to nothing on them yet, and is not
        held up by this, which takes a while."""
        if self._account is not None:
            self._spent = self._account()

    def look(self) -> None:
        """Note the memory of what runs now, and when to look again."""
        pids = descendants(self._child.pid, self._child.mark, self.since)
        found = [_memory(pid, b"VmHWM:") for pid in pids]
        # An interpreter's own high-water mark may be an earlier command's.
        found.append(_memory(self._child.pid, b"VmRSS:" if self._kept else b"VmHWM:"))
        self._peak = max(self._peak, *found)
        self._pause = min(1.5 * self._pause, _LONGEST_PAUSE)
        self.next_look = time.monotonic() + self._pause

    def now(self) -> Usage:
        """While it runs: what was reaped and what lives."""
        self.look()
        pids = descendants(self._child.pid, self._child.mark, self.since)
        spent = cpu_of(self._child.pid) - self._spent + sum(cpu_of(pid) for pid in pids)
        self._seen = max(self._seen, spent)
        return Usage(self._seen, self._peak or None)

    def final(self) -> Usage:
        """When a command of an interpreter is over. The kernel's clock would not notice a short one."""
        if self._account is None or time.monotonic() - self._began < _NOTICED:
            return Usage(self._seen, self._peak or None)
        return Usage(max(self._seen, self._account() - self._spent), self._peak or None)

    def of_process(self) -> Usage:
        """When a process of its own is over. What was killed unwaited-for is only in what was seen before.

        The kernel counts the guest's own size in, from which the process was forked: what is not above that
        tells nothing.
        """
        floor = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        told = self._child.peak_memory
        peak = max(told, self._peak) if told > floor else self._peak
        return Usage(max(self._seen, self._child.cpu_seconds), peak or None)


def cpu_of(pid: int) -> float:
    """Seconds that a process and the children it has waited for have used."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return cpu_in(file.read())
    except OSError:
        return 0.0


def cpu_in(stat: bytes) -> float:
    fields = stat.rpartition(b")")[2].split(None, 15)
    return sum(int(ticks) for ticks in fields[11:15]) / _TICKS


def _memory(pid: int, name: bytes) -> int:
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(name):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
