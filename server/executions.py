"""Executions: commands run in a session, waited for, followed, reached and ended.

Running one asks the store and the guest, nobody else. The guest owns it: it goes on when its caller, its web
worker or the whole server goes away, and all that is told of it comes from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from server import errors
from server.concurrency import Concurrency
from server.config import Config
from server.day_usage import DayUsage
from server.detached import Detached, One
from server.guest_answers import Answer, Batch, Execution, Told
from server.guest_client import TERMINAL, Command, GuestClient, Sandbox
from server.guest_refusals import refusal_of
from server.names import Name
from server.records import HOT
from server.sessions import Sessions
from server.snapshots import Checkpoint
from server.spending import Spending
from server.store import Session
from server.times import timestamp

KEEPALIVE = 10.0  # seconds after which somebody who follows hears at least that all is well
_WORTH_NOTING = 1.0  # a command that took less has not kept its session from resting
_SHELL = ["/bin/bash", "-i"]
_SCREEN = (80, 24)


def _nothing() -> None:
    """To be done before a guest is asked, most often."""


def _no_checkpoint() -> AbstractContextManager[Checkpoint]:
    """A terminal is nothing to undo."""
    return nullcontext(Checkpoint())


class Executions:
    def __init__(
        self,
        config: Config,
        sessions: Sessions,
        spending: Spending,
        guests: GuestClient,
        detached: Detached,
        concurrency: Concurrency,
        usage: DayUsage,
        checkpoint: Callable[[Session, str], AbstractContextManager[Checkpoint]],
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._sessions = sessions
        self._spending = spending
        self._guests = guests
        self._detached = detached
        self._concurrency = concurrency
        self._usage = usage
        self._checkpoint = checkpoint
        self._clock = clock

    def run(self, tenant: str, session_id: str, command: Command, name: Name) -> Answer:
        """Run a command and wait for what it comes to."""
        session = self._sessions.get(tenant, session_id)
        if session.ephemeral:
            with self._spending.spending(session):
                return self.run_in(session, command, name)
        return self.run_in(session, command, name)

    def run_in(
        self, session: Session, command: Command, name: Name, ready: Callable[[], None] = _nothing
    ) -> Answer:
        """The same, when it is known whose session it is. `ready` is called when all else is: if it raises,
        the guest is not asked."""
        tenant, asked = session.tenant, False
        busy_until = self._sessions.use(session, 2 * command.timeout)  # it may wait for its shell, then run
        leave = self._concurrency.enter_execution(session, self._running_in)
        running = self._usage.begin(tenant, session.user_id)
        seconds: float | None = 0.0
        try:
            with self._checkpoint(session, name.id) as checkpoint, self._sessions.reached(session) as sandbox:
                ready()
                asked, seconds = True, None
                answer = self._guests.run(sandbox, name.id, name.fingerprint, command)
                checkpoint.is_needed = answer.new
            seconds = answer.seconds if answer.new else 0.0
        except errors.ExecutionExists as exc:
            seconds = 0.0
            raise _conflict(name) from exc
        except errors.SandboxError:
            raise
        except BaseException:  # the caller has gone, the command goes on
            if asked:
                until = busy_until or self._clock() + 2 * command.timeout
                one = One(tenant, session.id, name.id, until, command.timeout)
                self._detached.add(one, self._clock())
            raise
        finally:
            self._usage.end(running, seconds)
            leave()
        if not answer.new:  # who began it may have hung up
            self._detached.remove(session.id, name.id, answer.seconds)
        if busy_until or answer.seconds >= _WORTH_NOTING:
            self._sessions.rest(session, busy_until)
        return answer

    def start(
        self, tenant: str, session_id: str, command: Command, name: Name, wait: float, followed: bool = False
    ) -> Told:
        """Start a command that goes on by itself, and wait so long for its end."""
        session = self._sessions.get(tenant, session_id)
        if session.ephemeral:
            self._spend(session, followed)
        return self.start_in(session, command, name, wait)

    def start_in(
        self,
        session: Session,
        command: Command,
        name: Name,
        wait: float,
        ready: Callable[[], None] = _nothing,
    ) -> Told:
        """The same, when it is known whose session it is; `ready` as for `run_in`."""
        until = self._sessions.use(session, 2 * command.timeout)
        return self._start(session, command, name, wait, until, self._checkpoint(session, name.id), ready)

    def open_terminal(self, tenant: str, session_id: str, name: str, screen: tuple[int, int] | None) -> Told:
        """The session's terminal of that name: a shell on a screen, begun if it does not run.

        It lives as long as the session. Typing renews the lease; a shell that only waits does not.
        """
        session = self._sessions.get(tenant, session_id)
        if session.ephemeral:
            self._spend(session, followed=False)
        self._sessions.use(session)
        command = Command(_SHELL, self._config.age_max, shell=None, screen=screen or _SCREEN, again=True)
        series = f"{TERMINAL}{name}"
        told = self._start(session, command, Name(series, ""), 0, session.must_end_at, _no_checkpoint())
        self._detached.rename(session.id, series, told.execution.id)
        return told

    def _spend(self, session: Session, followed: bool) -> None:
        """The result of what nobody waits for could never be had: the session is over with it."""
        if not followed:
            raise errors.Invalid("session_id", "An ephemeral session runs one command, which is waited for.")
        self._spending.spend(session)

    def _start(
        self,
        session: Session,
        command: Command,
        name: Name,
        wait: float,
        until: float,
        checkpointed: AbstractContextManager[Checkpoint],
        ready: Callable[[], None] = _nothing,
    ) -> Told:
        until = until or self._clock() + 2 * command.timeout
        most = 0.0 if command.again else command.timeout  # a terminal that waits for somebody is free
        one = One(session.tenant, session.id, name.id, until, most)
        new = self._concurrency.detach(session, one, self._running_in)
        try:
            with checkpointed as checkpoint, self._sessions.reached(session) as sandbox:
                ready()
                told = self._guests.start(sandbox, name.id, name.fingerprint, command, wait)
                checkpoint.is_needed = told.new and told.refusal is None
        except errors.SandboxError as exc:
            if new and not isinstance(exc, errors.GuestUnavailable):  # then it may run all the same
                self._detached.remove(session.id, name.id, 0.0)
            if isinstance(exc, errors.ExecutionExists):
                raise _conflict(name) from exc
            raise
        if told.refusal is not None:
            self._noted(session, told)
            raise refusal_of(told.refusal, self._config.executions_max)
        return self._noted(session, told)

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
        with self._reached(tenant, session_id) as (session, sandbox):
            found = self._guests.list(sandbox)
        counted = self._detached.in_session(session_id)
        for one in found:
            if one.id in counted:
                self._settle(session, one)
        return found

    def settle(self, tenant: str, session_id: str) -> None:
        """Before it is closed: how long what ran by itself has run is known to its guest alone."""
        if not self._detached.in_session(session_id):
            return
        with suppress(errors.SandboxError):  # then it counts until now, within its bounds
            if self._sessions.get(tenant, session_id).phase == HOT:
                self.list(tenant, session_id)

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

    def enter_stream(self, tenant: str, session_id: str | None) -> Callable[[], None]:
        """Counts one more open stream, until what is returned is called. Some are of no session."""
        return self._concurrency.enter_stream(tenant, session_id, self._sessions.user_of(tenant, session_id))

    @contextmanager
    def _reached(self, tenant: str, session_id: str) -> Iterator[tuple[Session, Sandbox]]:
        session = self._sessions.get(tenant, session_id)
        try:
            with self._sessions.reached(session) as sandbox:
                yield session, sandbox
        except errors.ExecutionNotFound as exc:
            cold_at = self._sessions.get(tenant, session_id).cold_at
            raise errors.ExecutionNotFound(None if cold_at is None else timestamp(cold_at)) from exc

    def _running_in(self, tenant: str, session_id: str) -> dict[str, float | None]:
        """For each execution that the guest knows how many seconds it took; None while it runs.

        Nobody is woken for this: what is frozen still runs.
        """
        if self._sessions.get(tenant, session_id).phase != HOT:
            raise errors.GuestUnavailable("The session sleeps.")
        told = self.list(tenant, session_id)
        return {one.id: None if one.ended_at is None else one.ended_at - one.started_at for one in told}

    def _noted(self, session: Session, told: Told) -> Told:
        """Whoever learns that an execution has ended says so: it counts no more, nor keeps its session."""
        self._settle(session, told.execution, told.refusal is not None)
        return told

    def _settle(self, session: Session, one: Execution, refused: bool = False) -> None:
        if one.ended_at is None:
            return
        until = self._detached.remove(session.id, one.id, 0.0 if refused else one.ended_at - one.started_at)
        if until is not None:
            self._sessions.rest(session, until, one.ended_at)


def _conflict(name: Name) -> errors.SandboxError:
    """Who did not choose the id does not know it: what is in conflict is then the key."""
    return errors.ExecutionExists() if name.chosen else errors.IdempotencyConflict()
