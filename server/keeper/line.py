"""Creates that wait for a place: round robin between tenants, first come first served within one.

Nobody looks again and again. When a place may have become free, the first of each tenant's line gets its turn
to try, one after the other. Whoever hangs up, or has waited long enough, leaves.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

Placed = TypeVar("Placed")
_ANYTHING = select.POLLIN | select.POLLRDHUP


class StillFull(Exception):
    """What an attempt raises when there is no place; and what is raised when waiting was in vain."""


class HungUp(Exception):
    """Nobody waits any more."""


class _Waiter:
    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.sent_away = False


class Line:
    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._lines: dict[str, deque[_Waiter]] = {}  # in the order in which tenants get their turn
        self._untried: set[str] = set()  # tenants that have had no turn since a place became free
        self._trying: _Waiter | None = None

    def __len__(self) -> int:
        with self._lock:
            return self._length()

    def ring(self) -> None:
        """A place may have become free."""
        with self._lock:
            self._untried = set(self._lines)
            self._pass_on()

    def wait(self, tenant: str, attempt: Callable[[], Placed], peer: socket.socket, seconds: float) -> Placed:
        """What `attempt` gives once it does not raise StillFull. Raises that, or HungUp, otherwise."""
        mine = _Waiter(tenant)
        try:
            self._enter(mine)
            try:
                return self._turns(mine, attempt, peer, time.monotonic() + seconds)
            finally:
                self._leave(mine)
        finally:
            os.close(mine.bell)

    def _turns(
        self, mine: _Waiter, attempt: Callable[[], Placed], peer: socket.socket, deadline: float
    ) -> Placed:
        poll = select.poll()
        poll.register(mine.bell, select.POLLIN)
        poll.register(peer, _ANYTHING)
        while (left := deadline - time.monotonic()) > 0:
            heard = {file for file, _ in poll.poll(left * 1000)}
            if peer.fileno() in heard:
                raise HungUp
            if mine.bell not in heard:
                continue
            os.eventfd_read(mine.bell)
            if mine.sent_away:
                break
            try:
                return attempt()
            except StillFull:
                self._step_back(mine)
        raise StillFull

    def _enter(self, mine: _Waiter) -> None:
        """A line that is full takes one more of a tenant by sending away the last of one that has more."""
        with self._lock:
            own = len(self._lines.get(mine.tenant, ()))
            if self._length() >= self._most:
                longest = max(self._lines.values(), key=len, default=deque())
                if len(longest) <= own + 1 or longest[-1] is self._trying:
                    raise StillFull
                last = longest.pop()
                last.sent_away = True
                os.eventfd_write(last.bell, 1)
            self._lines.setdefault(mine.tenant, deque()).append(mine)
            self._untried.add(mine.tenant)
            self._pass_on()

    def _leave(self, mine: _Waiter) -> None:
        """With a place or without: the next of its tenant stands behind all others."""
        with self._lock:
            line = self._lines.get(mine.tenant, deque())
            if mine in line:
                line.remove(mine)
            if self._trying is mine:
                self._trying = None
                self._untried.add(mine.tenant)
                self._lines[mine.tenant] = self._lines.pop(mine.tenant, line)
            if not line:
                self._lines.pop(mine.tenant, None)
            self._pass_on()

    def _step_back(self, mine: _Waiter) -> None:
        with self._lock:
            self._trying = None
            self._pass_on()

    def _pass_on(self) -> None:
        if self._trying is not None:
            return
        for tenant, line in self._lines.items():
            if tenant in self._untried:
                self._untried.discard(tenant)
                self._trying = line[0]
                os.eventfd_write(line[0].bell, 1)
                return

    def _length(self) -> int:
        return sum(map(len, self._lines.values()))
