"""A session's files: whose they are, how long using them keeps the session, how many transfers there may be.

The guest alone touches them, as the session's user. Nothing here knows a path of the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from server.guest_client import Sandbox
from server.guest_files_client import GuestFiles
from server.sessions import Sessions

_WORTH_KEEPING = 0.25  # of the lease: a transfer that goes on renews it when so much of it is gone

Told = TypeVar("Told")
Ask = Callable[[GuestFiles, Sandbox], Told]


class Files:
    def __init__(
        self,
        sessions: Sessions,
        guests: GuestFiles,
        enter_stream: Callable[[str, str], Callable[[], None]],
        clock: Callable[[], float],
    ) -> None:
        self._sessions = sessions
        self._guests = guests
        self._enter_stream = enter_stream
        self._clock = clock

    def ask(self, tenant: str, session_id: str, ask: Ask[Told]) -> Told:
        """What the guest of the tenant's own session answers."""
        with self._reached(tenant, session_id) as sandbox:
            return ask(self._guests, sandbox)

    def wait(self, tenant: str, session_id: str, ask: Ask[Told]) -> Told:
        """The same for what may take a while: whoever waits so is counted like a stream."""
        told, leave = self.begin(tenant, session_id, ask)
        leave()
        return told

    def begin(self, tenant: str, session_id: str, ask: Ask[Told]) -> tuple[Told, Callable[[], None]]:
        """A transfer, counted like a stream until what is returned beside it is called."""
        leave = self._enter_stream(tenant, session_id)
        try:
            return self.ask(tenant, session_id, ask), leave
        except BaseException:
            leave()
            raise

    @contextmanager
    def going_on(self, tenant: str, session_id: str) -> Iterator[None]:
        """For the length of a transfer: if its guest falls silent, that is explained."""
        with self._sessions.reached(self._sessions.get(tenant, session_id)):
            yield

    def keep(self, tenant: str, session_id: str) -> None:
        """A transfer goes on: so must its session, and it must still be there."""
        session = self._sessions.get(tenant, session_id)
        if self._clock() - session.last_used_at >= _WORTH_KEEPING * session.lease:
            self._sessions.use(session)

    @contextmanager
    def _reached(self, tenant: str, session_id: str) -> Iterator[Sandbox]:
        session = self._sessions.get(tenant, session_id)
        self._sessions.use(session)
        with self._sessions.reached(session) as sandbox:
            yield sandbox
