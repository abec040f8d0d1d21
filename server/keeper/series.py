"""What a session used over time: samples of one size, the oldest given up for the newest."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from server.keeper.runtime import Usage

_UNKNOWN = -1.0
_FIELDS = 7

# at, cpu_seconds, cpus, memory, memory_peak, processes, disk_used
Row = list[float | int | None]


class Series:
    """A few KiB a session. `cpus` tells how many were in use since the sample before."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers = array("d")
        self._next = 0  # where the oldest is, once there are as many as there may be
        self._sandbox = ""
        self._last: tuple[float, float] | None = None  # when, and CPU seconds by then

    def add(self, at: float, sandbox: str, usage: Usage | None, disk: int | None) -> None:
        row = array(
            "d", (_UNKNOWN if value is None else value for value in self.row(at, sandbox, usage, disk))
        )
        if len(self._numbers) < self._most * _FIELDS:
            self._numbers.extend(row)
        else:
            self._numbers[self._next : self._next + _FIELDS] = row
            self._next = (self._next + _FIELDS) % len(self._numbers)
        self._sandbox = sandbox
        self._last = None if usage is None else (at, usage.cpu_seconds)

    def row(self, at: float, sandbox: str, usage: Usage | None, disk: int | None) -> Row:
        """A sample, not kept. Counting begins anew with another sandbox."""
        if usage is None:
            return [at, None, None, None, None, None, disk]
        cpus = None
        if self._last is not None and self._sandbox == sandbox and at > self._last[0]:
            cpus = round(max(0.0, usage.cpu_seconds - self._last[1]) / (at - self._last[0]), 3)
        facts = (usage.memory, usage.memory_peak, usage.processes, disk)
        return [at, round(usage.cpu_seconds, 3), cpus, *facts]

    def since(self, at: float) -> Iterator[Row]:
        """Oldest first."""
        numbers = self._numbers
        for offset in range(0, len(numbers), _FIELDS):
            start = (self._next + offset) % len(numbers)
            if numbers[start] >= at:
                yield [_told(index, value) for index, value in enumerate(numbers[start : start + _FIELDS])]

    @property
    def newest(self) -> float:
        if not self._numbers:
            return 0.0
        return self._numbers[(self._next - _FIELDS) % len(self._numbers)]


def _told(index: int, value: float) -> float | int | None:
    """The first three are fractions, the rest are whole."""
    if value == _UNKNOWN:
        return None
    return value if index < 3 else int(value)
