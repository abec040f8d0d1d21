"""Whether sandboxes live, and when they last had something to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from server.errors import GuestUnavailable
from server.guest_answers import Execution, Told
from server.guest_client import TERMINAL, GuestClient, GuestSilent, Sandbox
from server.instance import Instance
from server.keeper.meters import Meters
from server.keeper.names import identifier, is_identifier
from server.keeper.runtime import Runtime
from server.keeper.sandboxes import Sandboxes
from server.keeper.storage import Storage
from server.records import HOT
from server.store import Session, Store

_DEATH_SECONDS = 3.0


class Vitals:
    def __init__(
        self,
        instance: Instance,
        store: Store,
        runtime: Runtime,
        storage: Storage,
        guests: GuestClient,
        sandboxes: Sandboxes,
        meters: Meters,
    ) -> None:
        self._instance = instance
        self._store = store
        self._runtime = runtime
        self._storage = storage
        self._guests = guests
        self._sandboxes = sandboxes
        self._meters = meters

    def examine(self, session_id: str) -> str | None:
        """Why the session's sandbox is dead; the session is ended then. None while it lives."""
        session = self._store.session(session_id)
        if session is None:
            return "lost"
        if session.state == "ended":
            return session.cause
        if session.sandbox is None or session.phase != HOT:
            return None  # it sleeps: whoever wakes it finds out
        self._runtime.wait_dead(session.sandbox, _DEATH_SECONDS)
        seen = self._runtime.inspect(session.sandbox)
        cause = "lost" if seen is None else seen.cause or self._forgetful(session)
        if cause is None or self._has_moved(session):
            return None
        return self._sandboxes.bury(session_id, session.sandbox, cause)

    def _has_moved(self, session: Session) -> bool:
        """It may have got another sandbox while we looked at the old one."""
        now = self._store.session(session.id)
        return now is not None and now.state == "running" and now.sandbox != session.sandbox

    def _forgetful(self, session: Session) -> str | None:
        """A container that was restarted lives, but not as the session it was."""
        try:
            bound = self._guests.is_bound(self._sandbox(session))
        except (GuestSilent, GuestUnavailable):
            return None  # it lives, and does not answer
        if bound:
            return None
        self._meters.guest_restarted()
        return "engine_stopped"

    def rested_at(self, session: Session) -> float | None:
        """When the last command in a session ended; None while one runs, or when it cannot be told.

        A terminal that waits for somebody to type is not a command that runs.
        """
        if not is_identifier(session.sandbox):
            return None
        try:
            told = self.executions(session)
        except (GuestSilent, GuestUnavailable):
            return None
        commands = [execution for execution in told if not execution.id.startswith(TERMINAL)]
        if any(execution.ended_at is None for execution in commands):
            return None
        return max((execution.ended_at or 0.0 for execution in commands), default=session.last_used_at)

    def executions(self, session: Session) -> list[Execution]:
        """Raises GuestSilent or GuestUnavailable when that cannot be told."""
        with self._spoken_to(session) as sandbox:
            return self._guests.list(sandbox)

    def told(self, session: Session, execution: str) -> Told:
        """The same of one, which may be ExecutionNotFound, too."""
        with self._spoken_to(session) as sandbox:
            return self._guests.tell(sandbox, execution, 0)

    def describe(self, session: Session, with_results: bool = False) -> bytes:
        """What its main shell is like, and what it has run if asked; nothing if that cannot be told."""
        try:
            with self._spoken_to(session) as sandbox:
                return self._guests.describe(sandbox, with_results)
        except (GuestSilent, GuestUnavailable):
            return b""

    @contextmanager
    def _spoken_to(self, session: Session) -> Iterator[Sandbox]:
        """Nobody will be soon again: the connection is not kept."""
        sandbox = self._sandbox(session)
        try:
            yield sandbox
        finally:
            self._guests.forget(sandbox.id)

    def _sandbox(self, session: Session) -> Sandbox:
        """By its id alone: an address that the store tells may be anybody's."""
        sandbox = identifier(session.sandbox)
        return Sandbox(sandbox, self._storage.address_of(sandbox), self._instance.guest_secret(sandbox))
