"""What is asked often and costs something to find out: one looks at a time, and all are told for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Found = TypeVar("Found")


class Remembered(Generic[Found]):
    def __init__(self, look: Callable[[], Found], seconds: float | Callable[[Found], float]) -> None:
        """`seconds`: how long what was found is told, if need be by what it is."""
        self._look = look
        self._seconds = seconds
        self._looking = threading.Lock()
        self._last: tuple[Found, float] | None = None

    def __call__(self) -> Found:
        """Who asks while another looks waits for what that one finds: as long as `look` may take."""
        with self._looking:
            if self._last is None or time.monotonic() >= self._last[1]:
                found = self._look()
                seconds = self._seconds(found) if callable(self._seconds) else self._seconds
                self._last = (found, time.monotonic() + seconds)
            return self._last[0]
