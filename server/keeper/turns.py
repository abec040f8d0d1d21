"""One thing at a time is done to a session: snapshots, going back, falling asleep, waking."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from server.keeper.runtime import RuntimeFailed

_SECONDS = 25.0


class Turns:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken: set[str] = set()

    @contextmanager
    def taken(self, session_id: str, seconds: float = _SECONDS) -> Iterator[None]:
        with self._changed:
            if not self._changed.wait_for(lambda: session_id not in self._taken, seconds):
                raise RuntimeFailed("Something else is being done to this session. Try again shortly.")
            self._taken.add(session_id)
        try:
            yield
        finally:
            with self._changed:
                self._taken.discard(session_id)
                self._changed.notify_all()
