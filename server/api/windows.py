"""Rate limit counters in a worker's own memory, for flask-limiter.

The counters it ships with start a thread every few milliseconds to forget old ones; these forget when there
are too many. Each worker counts for itself, so a limit holds for every worker apart.
"""

from __future__ import annotations

import time

from limits.storage import Storage

_MOST_COUNTERS = 10_000


class WorkerStorage(Storage):
    STORAGE_SCHEME = ["worker"]  # noqa: RUF012 - the name the library looks for

    def __init__(
        self, uri: str | None = None, wrap_exceptions: bool = False, **_: float | str | bool
    ) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self._counters: dict[str, tuple[int, float]] = {}

    @property
    def base_exceptions(self) -> type[Exception]:
        return ValueError

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        now = time.time()
        count, until = self._counters.get(key, (0, 0.0))
        if until <= now:
            count, until = 0, now + expiry
            self._make_room(now)
        self._counters[key] = (count + amount, until)
        return count + amount

    def get(self, key: str) -> int:
        count, until = self._counters.get(key, (0, 0.0))
        return count if until > time.time() else 0

    def get_expiry(self, key: str) -> float:
        return self._counters.get(key, (0, time.time()))[1]

    def check(self) -> bool:
        return True

    def reset(self) -> int:
        count = len(self._counters)
        self._counters.clear()
        return count

    def clear(self, key: str) -> None:
        self._counters.pop(key, None)

    def _make_room(self, now: float) -> None:
        """Old ones first; if that does not help, somebody is sending from everywhere, and all start anew."""
        if len(self._counters) < _MOST_COUNTERS:
            return
        self._counters = {key: value for key, value in self._counters.items() if value[1] > now}
        if len(self._counters) >= _MOST_COUNTERS:
            self._counters.clear()
