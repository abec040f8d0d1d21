"""Fairness in a worker: costly work is done for one stream of a tenant at a time, half of the time at most.

A worker is one thread. However many streams of a flood a tenant has open, others wait for one piece of work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

_COSTLY = 8 << 10  # bytes; what is smaller takes well below a millisecond


class _Turn:
    def __init__(self) -> None:
        self.lock = threading.Lock()


class Turns:
    def __init__(self) -> None:
        self._turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()

    @contextmanager
    def taken(self, tenant: str, size: int) -> Iterator[None]:
        """For work on `size` bytes. Afterwards others have as much time as it took."""
        if size < _COSTLY:
            yield
            return
        turn = self._turns.setdefault(tenant, _Turn())
        with turn.lock:
            began = time.monotonic()
            yield
            time.sleep(time.monotonic() - began)
