"""Ephemeral sessions: each is for one command, and over with it. Who begins it spends the session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from server import ephemeral_rows as rows
from server import errors
from server.names import Idempotency
from server.presence import Presence
from server.records import WAITING
from server.sessions import Sessions
from server.store import Session, Store
from server.times import timestamp


class Spending:
    def __init__(
        self, store: Store, sessions: Sessions, presence: Presence, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._sessions = sessions
        self._presence = presence
        self._clock = clock

    @contextmanager
    def spending(self, session: Session) -> Iterator[None]:
        """Its one command is run in the block; the session is over at its end."""
        self.spend(session)
        try:
            yield
        finally:
            self._sessions.end(session, "spent", soon=True)

    def spend(self, session: Session) -> None:
        """From here on no other command may be run in it."""
        if not rows.spend(self._store, session.id, self._clock()):
            raise errors.SessionEnded("spent", timestamp(self._clock()))

    def spend_once(self, session: Session, prepare: Callable[[], None]) -> bool:
        """The same for several who ask for the same command: whether this call has spent it.

        It is prepared before, by one of them, and never once its command may run.
        """
        with self._presence.alone(session.id):
            if self._sessions.get(session.tenant, session.id).ephemeral != WAITING:
                return False
            prepare()
            self.spend(session)
            return True

    def finish(self, tenant: str, session_id: str, ran: bool = True) -> None:
        """Nobody needs the session any more, if it is an ephemeral one. Ended already is fine.

        If its command has not run, its Idempotency-Key is good for another.
        """
        session = self._store.session(session_id)
        if session is not None and session.tenant == tenant and session.ephemeral:
            if not ran:
                rows.free_key(self._store, session.id)
            self._sessions.end(session, "spent", soon=True)

    def give_up(self, session: Session) -> None:
        """End one that nobody has spent. Its Idempotency-Key is good for another."""
        if rows.give_up(self._store, session.id, self._clock()):
            self._sessions.remove(session, soon=True)

    def free_unspent(self, tenant: str, idempotency: Idempotency) -> None:
        """The key of a session that ended before anything was run in it is good for another."""
        rows.free_unspent(self._store, tenant, idempotency)

    def is_under_way(self, tenant: str, idempotency: Idempotency | None) -> bool:
        """Whether somebody has asked for the same before."""
        return idempotency is not None and rows.is_key_known(self._store, tenant, idempotency.key)
