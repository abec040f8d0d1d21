"""Sandboxes that somebody is at work on right now: not for the reconciler to judge, nor a leak."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class InHand:
    """Counted: one that is being opened may be closed at the same time, by somebody else."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()

    def take(self, name: str) -> None:
        with self._lock:
            self._held[name] += 1

    def let_go(self, name: str) -> None:
        """Also of what was not held."""
        with self._lock:
            self._held[name] -= 1
            if self._held[name] <= 0:
                del self._held[name]

    @contextmanager
    def holding(self, name: str) -> Iterator[None]:
        self.take(name)
        try:
            yield
        finally:
            self.let_go(name)

    def all(self) -> set[str]:
        with self._lock:
            return set(self._held)
