"""Executions: commands run in a session, waited for, followed, reached and ended.

Running one asks the store and the guest, nobody else. The guest owns it: it goes on when its caller, its web
worker or the whole server goes away, and all that is told of it comes from there.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from server import errors
from server.config import Config
from server.detached import Detached, One
from server.guest_answers import Answer, Batch, Execution, Told
from server.guest_client import SESSION_STREAMS, TERMINAL, Command, GuestClient, Sandbox, refusal_of
from server.sessions import Idempotency, Sessions
from server.store import Session
from server.tally import Tally

KEEPALIVE = 10.0  # seconds after which somebody who follows hears at least that all is well
_WORTH_NOTING = 1.0  # a command that took less has not kept its session from resting
_RECOUNT_SECONDS = 1.0
_MOMENT = 0.1
_ANY = 1 << 30
_SHELL = ["/bin/bash", "-i"]
_SCREEN = (80, 24)


@dataclass(frozen=True)
class Name:
    """What an execution is called, and a fingerprint of the request: the same name runs once."""

    id: str
    fingerprint: str
    chosen: bool = False  # by the caller


def name_for(session_id: str, own: str | None, fingerprint: str, idempotency: Idempotency | None) -> Name:
    if own is not None:
        return Name(own, fingerprint, chosen=True)
    if idempotency is None:
        return Name(secrets.token_hex(16), "")
    digest = hashlib.sha256(f"{session_id}/{idempotency.key}".encode()).hexdigest()
    return Name(digest[:32], idempotency.fingerprint)


class Executions:
    def __init__(
        self,
        config: Config,
        sessions: Sessions,
        guests: GuestClient,
        detached: Detached,
        tally: Tally,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._sessions = sessions
        self._guests = guests
        self._detached = detached
        self._tally = tally
        self._clock = clock
        self._counted: dict[str, tuple[int, float]] = {}
        self._recounted: dict[str, float] = {}

    def run(self, tenant: str, session_id: str, command: Command, name: Name) -> Answer:
        """Run a command and wait for what it comes to."""
        session = self._sessions.get(tenant, session_id)
        busy_until = self._sessions.use(session, 2 * command.timeout)  # it may wait for its shell, then run
        self._count_in(tenant)
        try:
            with self._sessions.reached(session) as sandbox:
                answer = self._guests.run(sandbox, name.id, name.fingerprint, command)
        except errors.ExecutionExists as exc:
            raise _conflict(name) from exc
        except errors.SandboxError:
            raise
        except BaseException:  # the caller has gone, the command goes on
            until = busy_until or self._clock() + 2 * command.timeout
            self._detached.add(One(tenant, session.id, name.id, until), self._clock(), _ANY)
            raise
        finally:
            self._tally.leave("executions", tenant)
        if busy_until or answer.seconds >= _WORTH_NOTING:
            self._sessions.rest(session, busy_until)
        return answer

    def start(self, tenant: str, session_id: str, command: Command, name: Name, wait: float) -> Told:
        """Start a command that goes on by itself, and wait so long for its end."""
        session = self._sessions.get(tenant, session_id)
        until = self._sessions.use(session, 2 * command.timeout)
        return self._start(session, command, name, wait, until)

    def open_terminal(self, tenant: str, session_id: str, name: str, screen: tuple[int, int] | None) -> Told:
        """The session's terminal of that name: a shell on a screen, begun if it does not run.

        It lives as long as the session. Typing renews the lease; a shell that only waits does not.
        """
        session = self._sessions.get(tenant, session_id)
        self._sessions.use(session)
        command = Command(_SHELL, self._config.age_max, shell=None, screen=screen or _SCREEN, again=True)
        series = f"{TERMINAL}{name}"
        told = self._start(session, command, Name(series, ""), 0, session.must_end_at)
        self._detached.rename(session.id, series, told.execution.id)
        return told

    def _start(self, session: Session, command: Command, name: Name, wait: float, until: float) -> Told:
        until = until or self._clock() + 2 * command.timeout
        new = self._detach(One(session.tenant, session.id, name.id, until))
        try:
            with self._sessions.reached(session) as sandbox:
                told = self._guests.start(sandbox, name.id, name.fingerprint, command, wait)
        except errors.SandboxError as exc:
            if new and not isinstance(exc, errors.GuestUnavailable):  # then it may run all the same
                self._detached.remove(session.id, name.id)
            if isinstance(exc, errors.ExecutionExists):
                raise _conflict(name) from exc
            raise
        if told.refusal is not None:
            self._noted(session, told)
            raise refusal_of(told.refusal, self._config.executions_max)
        return self._noted(session, told)

    def _detach(self, one: One) -> bool:
        most = self._config.tenant_executions_max
        self._running_apart(one.tenant)  # counts anew if need be
        new = self._detached.add(one, self._clock(), most - self._tally.count("executions", one.tenant))
        self._counted.pop(one.tenant, None)
        if new is None:
            raise errors.TooManyExecutions(most, "tenant")
        return new

    def await_end(self, tenant: str, session_id: str, execution: str, wait: float) -> Told:
        """The execution when it has ended, or after so long."""
        leave = self.enter_stream(tenant, session_id)
        try:
            return self.tell(tenant, session_id, execution, wait)
        finally:
            leave()

    def tell(self, tenant: str, session_id: str, execution: str, wait: float = 0) -> Told:
        with self._reached(tenant, session_id) as (session, sandbox):
            told = self._guests.tell(sandbox, execution, wait)
        return self._noted(session, told)

    def list(self, tenant: str, session_id: str) -> list[Execution]:
        with self._reached(tenant, session_id) as (_, sandbox):
            return self._guests.list(sandbox)

    def signal(self, tenant: str, session_id: str, execution: str, number: int) -> None:
        with self._reached(tenant, session_id) as (session, sandbox):
            self._sessions.use(session)
            self._guests.signal(sandbox, execution, number)

    def input(self, tenant: str, session_id: str, execution: str, data: bytes, close: bool) -> None:
        with self._reached(tenant, session_id) as (session, sandbox):
            self._sessions.use(session)
            self._guests.input(sandbox, execution, data, close)

    def resize(self, tenant: str, session_id: str, execution: str, cols: int, rows: int) -> None:
        with self._reached(tenant, session_id) as (_, sandbox):
            self._guests.resize(sandbox, execution, cols, rows)

    def cancel(self, tenant: str, session_id: str, execution: str) -> None:
        with self._reached(tenant, session_id) as (session, sandbox):
            self._sessions.use(session)
            self._guests.cancel(sandbox, execution)
            self._noted(session, self._guests.tell(sandbox, execution, 0))

    def read(self, tenant: str, session_id: str, execution: str, after: int, wait: float = 0) -> Batch:
        """What the log holds behind a position; waits so long if that is nothing yet."""
        with self._reached(tenant, session_id) as (_, sandbox):
            return self._guests.read(sandbox, execution, after, wait)

    def follow(self, tenant: str, session_id: str, execution: str, after: int) -> Iterator[Batch]:
        """The log from a position on, as it grows, to its end; an empty batch at least every KEEPALIVE."""
        while True:
            batch = self.read(tenant, session_id, execution, after, KEEPALIVE)
            yield batch
            after = max(after, batch.end)
            if batch.ended:
                return

    def enter_stream(self, tenant: str, session_id: str) -> Callable[[], None]:
        """Counts one more open stream, until what is returned is called."""
        places = {
            "tenant": (tenant, self._config.streams_max),
            "session": (f"{tenant}/{session_id}", SESSION_STREAMS),
        }
        entered: list[str] = []

        def leave() -> None:
            while entered:
                self._tally.leave("streams", entered.pop())

        for scope, (whose, most) in places.items():
            if not self._tally.enter("streams", whose, most):
                leave()
                raise errors.TooManyStreams(most, scope)
            entered.append(whose)
        return leave

    @contextmanager
    def _reached(self, tenant: str, session_id: str) -> Iterator[tuple[Session, Sandbox]]:
        session = self._sessions.get(tenant, session_id)
        with self._sessions.reached(session) as sandbox:
            yield session, sandbox

    def _count_in(self, tenant: str) -> None:
        """One more of the tenant's executions, besides those that are detached from any call."""
        most = self._config.tenant_executions_max
        if not self._tally.enter("executions", tenant, most - self._running_apart(tenant)):
            raise errors.TooManyExecutions(most, "tenant")

    def _running_apart(self, tenant: str) -> int:
        """How many are detached. Far from the limit a number of a moment ago is good enough."""
        now, most = self._clock(), self._config.tenant_executions_max
        count, counted_at = self._counted.get(tenant, (most, 0.0))
        if count < most // 2 and abs(now - counted_at) < _MOMENT:
            return count
        count = self._detached.count(tenant, now)
        if count + self._tally.count("executions", tenant) >= most and self._may_recount(tenant):
            self._recount(tenant)
            count = self._detached.count(tenant, now)
        self._counted[tenant] = (count, now)
        return count

    def _may_recount(self, tenant: str) -> bool:
        now = self._clock()
        if abs(now - self._recounted.get(tenant, 0.0)) < _RECOUNT_SECONDS:
            return False
        self._recounted[tenant] = now
        return True

    def _recount(self, tenant: str) -> None:
        """At its limit: some may have ended without anybody having been there."""
        for session_id, executions in self._detached.of(tenant).items():
            try:
                running = {one.id for one in self.list(tenant, session_id) if one.status != "ended"}
            except errors.SandboxError:
                continue  # one that cannot be asked keeps what it is counted for
            for execution in executions - running:
                self._detached.remove(session_id, execution)

    def _noted(self, session: Session, told: Told) -> Told:
        """Whoever learns that an execution has ended says so: it counts no more, nor keeps its session."""
        ended_at = told.execution.ended_at
        if ended_at is not None:
            until = self._detached.remove(session.id, told.execution.id)
            if until is not None:
                self._sessions.rest(session, until, ended_at)
        return told


def _conflict(name: Name) -> errors.SandboxError:
    """Who did not choose the id does not know it: what is in conflict is then the key."""
    return errors.ExecutionExists() if name.chosen else errors.IdempotencyConflict()
