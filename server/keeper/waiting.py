"""Reserving a place for who waits in line for one. The reservation is the same that the web side makes."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from dataclasses import replace

from server.errors import HostFull, QuotaExceeded, SandboxError
from server.keeper.line import HungUp, Line, StillFull
from server.quota_rows import HOLD_SECONDS, QuotaRows
from server.store import Session, Store

LONGEST = 600.0


class Waiting:
    def __init__(self, store: Store, quotas: QuotaRows, line: Line, clock: Callable[[], float]) -> None:
        self._store = store
        self._quotas = quotas
        self._line = line
        self._clock = clock
        self._held_until = 0.0

    def ring(self) -> None:
        """A place was given up that never had a sandbox."""
        self._line.ring()

    def place(self, draft: Session, peer: socket.socket, seconds: float) -> tuple[str, bool] | None:
        """The session that it becomes, and whether that is new; None if there was no place in time."""

        def attempt() -> tuple[str, bool]:
            now = self._clock()
            wanted = replace(draft, created_at=now, last_used_at=now)
            try:
                session, new = self._store.reserve(wanted, self._quotas.admit_from_line)
            except HostFull as exc:
                self._quotas.stand_in_line(draft.id, self._hold(now))
                raise StillFull from exc
            except QuotaExceeded as exc:
                self._quotas.leave_line(draft.id)
                raise StillFull from exc
            return session.id, new

        try:
            placed = self._line.wait(draft.tenant, attempt, peer, min(seconds, LONGEST))
        except (StillFull, HungUp, SandboxError):  # other errors: who asked finds out by itself
            return None
        finally:
            self._quotas.leave_line(draft.id)
        if placed[1] and _has_gone(peer):
            self._store.release(placed[0])
            self._line.ring()
        return placed

    def _hold(self, now: float) -> float:
        """Until when others are held back: all who wait together for half of the time at most.

        What becomes free meanwhile adds up for a large one. Without an end, whoever waits for what the host
        does not have would close it to everybody. Asked by who has its turn, so by one at a time.
        """
        if not -HOLD_SECONDS <= self._held_until - now <= HOLD_SECONDS:
            self._held_until = now + HOLD_SECONDS
        return self._held_until


def _has_gone(peer: socket.socket) -> bool:
    """It has nothing more to say: whatever is to be read is its end."""
    poll = select.poll()
    poll.register(peer, select.POLLIN | select.POLLRDHUP)
    return bool(poll.poll(0))
