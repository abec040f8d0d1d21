"""POST /run: the one command that a session was opened for, by however many callers with the same key.

The guest runs a name once, so all of them may ask it. Until one does, the session is nobody's: who opened it
may give it up, and its key is free. From then on the command may run, and only its end, or the guest's word
that it did not, ends the session for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from server import results
from server.errors import Invalid, Limited
from server.executions import Executions
from server.guest_answers import Answer, Told
from server.guest_client import Command
from server.names import Idempotency, Name
from server.run_rows import RunRows
from server.sessions import Opened
from server.spending import Spending
from server.store import Session


@dataclass
class Run:
    """What one caller asks for. With a `key` it is shared with all who ask for the same."""

    opened: Opened
    place: Callable[[], None]  # puts its files where they belong
    command: Command
    name: Name
    key: Idempotency | None = None
    asked: bool = False  # the guest, or it is about to be

    @property
    def session(self) -> Session:
        return self.opened.session


class Runs:
    def __init__(self, spending: Spending, executions: Executions, answers: RunRows) -> None:
        self._spending = spending
        self._executions = executions
        self._answers = answers

    def given_before(self, tenant: str, idempotency: Idempotency) -> str | None:
        return self._answers.answer(tenant, idempotency)

    def run(self, run: Run) -> Answer:
        """What it came to; kept before the session ends, if it has a key. Then it goes on when its caller
        hangs up, who may ask again."""
        session, name = run.session, run.name
        try:
            answer = self._executions.run_in(session, run.command, name, lambda: self._spend(run))
        except BaseException as exc:
            self.failed(run, exc)
            raise
        if run.key is not None:
            self._answers.keep(session.tenant, run.key, results.as_text(answer, session.id, name.id))
        self._spending.finish(session.tenant, session.id)
        return answer

    def start(self, run: Run) -> Told:
        """For one who follows it, and ends the session afterwards."""
        try:
            return self._executions.start_in(run.session, run.command, run.name, 0, lambda: self._spend(run))
        except BaseException as exc:
            self.failed(run, exc)
            raise

    def _spend(self, run: Run) -> None:
        if not self._spending.spend_once(run.session, run.place) and run.key is None:
            self._spending.spend(run.session)  # which it is already: that is what the caller is told
        run.asked = True

    def failed(self, run: Run, failure: BaseException) -> None:
        """It came to nothing for this caller; it may be told more than once."""
        session = run.session
        if not run.asked:
            if run.opened.mine:
                self._spending.give_up(session)
        elif isinstance(failure, (Invalid, Limited)):
            self._spending.finish(session.tenant, session.id, ran=False)
        elif run.key is None:
            self._spending.finish(session.tenant, session.id)
