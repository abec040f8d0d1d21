"""Warm sandboxes: started, bound to a uid, waiting for a session. Each is given away once."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from server.guest_client import Sandbox
from server.keeper.storage import Furniture

_DEMAND_SECONDS = 60.0


@dataclass(frozen=True)
class Warm:
    """`image` is the name that sessions ask for, `made_of` what that name meant when it was started.

    `furniture` is in it already, for a session that wants nothing else.
    """

    sandbox: Sandbox
    image: str
    made_of: str
    furniture: Furniture = field(default_factory=Furniture)


class Pool:
    """Who has taken what, and how many are wanted: as many as were opened within the last minute."""

    def __init__(self, least: int, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._least = least
        self._most = most
        self._clock = clock
        self._warm: dict[str, deque[Warm]] = {}
        self._opened: dict[str, deque[float]] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._last_opened = -_DEMAND_SECONDS

    def take(self, image: str) -> Warm | None:
        """The one that has waited longest."""
        with self._changed:
            warm = self._warm.get(image)
            taken = warm.popleft() if warm else None
            self._changed.notify_all()
            return taken

    def note_demand(self, image: str) -> None:
        with self._changed:
            self._last_opened = self._clock()
            self._opened.setdefault(image, deque(maxlen=self._most or 1)).append(self._clock())
            self._changed.notify_all()

    def calm_in(self, seconds: float) -> float:
        """How long it takes, if nobody comes, until nobody has come for so many seconds."""
        return max(0.0, self._last_opened + seconds - self._clock())

    def put(self, warm: Warm) -> bool:
        """False if the pool is closed: nobody will take it."""
        with self._changed:
            if not self._closed:
                self._warm.setdefault(warm.image, deque()).append(warm)
            return not self._closed

    def lacks(self, image: str) -> int:
        """How many are missing; negative when there are too many."""
        with self._changed:
            recent = self._opened.get(image, deque())
            while recent and recent[0] < self._clock() - _DEMAND_SECONDS:
                recent.popleft()
            wanted = min(self._most, max(self._least, len(recent)))
            return wanted - len(self._warm.get(image, ()))

    def waiting(self) -> list[Warm]:
        with self._changed:
            return [one for warm in self._warm.values() for one in warm]

    def drop(self, warm: Warm) -> bool:
        """Whether it was still here: then it is the caller's to close."""
        with self._changed:
            try:
                self._warm.get(warm.image, deque()).remove(warm)
            except ValueError:
                return False
            return True

    def await_change(self, seconds: float) -> bool:
        """False once the pool is closed."""
        with self._changed:
            if not self._closed:
                self._changed.wait(seconds)
            return not self._closed

    def close(self) -> list[Warm]:
        """Give up what is left, for the caller to close."""
        with self._changed:
            self._closed = True
            left = [one for warm in self._warm.values() for one in warm]
            self._warm.clear()
            self._changed.notify_all()
            return left
