"""What the server may ask of a bound guest, verb by verb: read, carried out and answered.

The server has checked what its callers sent; here only what would hurt the guest itself is looked at.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import contextmanager
from typing import Callable, Iterator, NamedTuple

from . import oneoff, replies, shell_state
from .aftermath import Aftermath
from .capture import Output
from .control import Cancelled, NotReachable
from .executions import Execution, Executions
from .file_verbs import TRANSFERS
from .file_verbs import VERBS as FILE_VERBS
from .files import Files
from .ground import Ground
from .log import EVER
from .memory import OomCounter
from .paths import Roots
from .processes import Identity, Processes
from .protocol import Body, Head
from .refusals import REFUSALS, code_of
from .refused import Refused
from .replies import Reply
from .shells import LANGUAGES, Shells
from .soft_limit import SoftLimit
from .stdin import NoTerminal, StdinClosed
from .streams import Drain
from .transfers import Line
from .work import Outcome, Work

_QUEUE_GRACE = 15.0
_START_SECONDS = 30.0
_CANCEL_SECONDS = 10.0
_MOST_WATCHERS = 96  # the server lets no more than 64 callers wait at once
_PAGE = 4096
_NEVER_RAN = 137, "SIGKILL"
_GROWING = {"file_write", "file_mkdir", "file_copy", "file_edit", "archive_unpack"}


class Session(NamedTuple):
    """A guest that knows for whom it works."""

    bound: Head
    ground: Ground
    shells: Shells
    executions: Executions
    output_limit: int
    oom: OomCounter
    aftermath: Aftermath
    files: Files
    watchers: threading.BoundedSemaphore

    def same(self, head: Head) -> bool:
        return head == self.bound

    def answer(self, verb: str, head: Head, body: Body, peer: int) -> Reply:
        """`peer` is the connection's descriptor: who hangs up is not waited for."""
        try:
            if verb in FILE_VERBS:
                return FILE_VERBS[verb](self.files, self._with_room(verb, head)), b""
            if verb in _WAITING:
                return _WAITING[verb](self, head, peer)
            return _VERBS[verb](self, head, body)
        except KeyError as exc:
            raise Refused("bad_request") from exc
        except REFUSALS as exc:
            raise Refused(code_of(exc)) from exc

    def is_transfer(self, verb: str) -> bool:
        return verb in TRANSFERS

    def transfer(self, verb: str, head: Head, connection: socket.socket) -> None:
        """Ends with the transfer; what cannot be done is told on the line."""
        line = Line(connection)
        try:
            TRANSFERS[verb](self.files, self._with_room(verb, head), line)
        except Refused as exc:
            line.refuse(exc)
        except KeyError:
            line.refuse(Refused("bad_request"))

    def _with_room(self, verb: str, head: Head) -> Head:
        """What makes files is told how large they may be, where nobody else would stop it."""
        if verb not in _GROWING:
            return head
        return {**head, "room": self.aftermath.room()}

    def prepare(self, head: Head, _: Body) -> Reply:
        """Start interpreters before anybody needs them."""
        for language in head["languages"]:
            self.shells.prepare(language)
        return {"ok": True}, b""

    def adopt(self, head: Head, body: Body) -> Reply:
        """A session has claimed this sandbox: its variables, its home, and what its shell was like before.

        The answer names the home that is seen from here: the keeper can tell whether it is the right one.
        """
        env = {str(name): str(value) for name, value in head["env"].items()}
        self.ground.env.update(env)
        if env or head["moved"] is True:
            self.shells.adopt(env)
        if body:
            shell_state.put_back(body, self.shells, self.ground, self.executions)
        home = os.stat(self.ground.home)
        return {"ok": True, "home": [home.st_dev, home.st_ino]}, b""

    def describe(self, head: Head, _: Body) -> Reply:
        executions = self.executions if head["with_results"] is True else None
        return {"ok": True}, shell_state.describe(self.shells, self.ground, executions)

    def run(self, head: Head, body: Body) -> Reply:
        """Start a command, or join it, and wait for its end; at most `wait` seconds if that is given."""
        name, fingerprint = str(head["execution"]), str(head["fingerprint"])
        about, again = replies.about(head), head["again"] is True
        execution, mine = self.executions.admit(name, fingerprint, about, again)
        wait = head["wait"]
        if mine:
            work = _work(head, body, execution)
            if wait is None:
                self._carry_out(execution, head, work)
                return _told_with(execution, new=True)
            self._set_going(execution, head, work)
        if wait is None:
            execution.done.wait(2 * float(head["timeout"]) + _QUEUE_GRACE)
            return _told_with(execution, new=False)
        if execution.control.settled is not None:
            execution.control.settled.wait(_START_SECONDS)
        self.executions.promise(execution)
        execution.done.wait(float(wait))
        told, body = self._described(execution)
        return {**told, "new": mine}, body

    def _set_going(self, execution: Execution, head: Head, work: Work) -> None:
        execution.control.settled = threading.Event()
        carry_out = threading.Thread(target=self._carry_out, args=(execution, head, work), daemon=True)
        try:
            carry_out.start()
        except RuntimeError as exc:
            self.executions.refuse(execution, exc)
            raise

    def _carry_out(self, execution: Execution, head: Head, work: Work) -> None:
        kills = self.oom.count()
        started = time.monotonic()
        output = Output(self.output_limit, execution.log)
        self.aftermath.begin(work.control)
        try:
            outcome = self._runner(head)(work, output)
        except Cancelled:
            outcome = Outcome(output, self.ground.home, *_NEVER_RAN)
        except Exception as exc:  # whatever it is, who waits for the same command gets it too
            work.control.finish()
            self.aftermath.end(work.control, None)
            self.executions.refuse(execution, exc)
            return
        seconds, oom = time.monotonic() - started, self.oom.count() > kills
        after = self.aftermath.end(work.control, outcome)
        answer = replies.result(outcome, seconds, oom, work.control.cancelled, after)
        self.executions.finish(execution, answer)

    def _runner(self, head: Head) -> Callable[[Work, Output], Outcome]:
        language, name = head["language"], head["shell"]
        if language not in LANGUAGES:
            raise Refused("bad_request")
        if name is not None:
            return lambda work, output: self.shells.run(language, name, work, output)
        if language == "bash":
            return lambda work, output: oneoff.run(work, self.ground, output)
        return lambda work, output: self.shells.run_once(language, work, output)

    def tell(self, head: Head, peer: int) -> Reply:
        execution = self.executions.find(str(head["execution"]))
        self._watch(execution, EVER, float(head["wait"]), peer)
        return self._described(execution)

    def _described(self, execution: Execution) -> Reply:
        refusal = code_of(execution.refusal) if execution.refusal else None
        result, body = execution.answer or (None, b"")
        return {"ok": True, "execution": replies.facts(execution), "refusal": refusal, "result": result}, body

    def list(self, head: Head, _: Body) -> Reply:
        return {"ok": True, "executions": [replies.facts(one) for one in self.executions.list()]}, b""

    def read(self, head: Head, peer: int) -> Reply:
        """What the log holds behind a position; waits a while if that is nothing yet."""
        execution = self.executions.find(str(head["execution"]))
        self._watch(execution, int(head["after"]), float(head["wait"]), peer)
        batch = execution.log.read(int(head["after"]), int(head["limit"]))
        body = b"".join(data for _, data in batch.pieces)
        ended = execution.log.ended and batch.begin + len(body) >= execution.log.total
        pieces = [[stream, len(data)] for stream, data in batch.pieces]
        return {"ok": True, "begin": batch.begin, "pieces": pieces, "ended": ended}, body

    def signal(self, head: Head, _: Body) -> Reply:
        with self._reached(head) as execution:
            execution.control.signal(int(head["signal"]))
        return {"ok": True}, b""

    def input(self, head: Head, body: Body) -> Reply:
        with self._reached(head) as execution:
            if execution.control.stdin is None:
                raise StdinClosed
            execution.control.stdin.send(bytes(body), head["close"] is True)
        return {"ok": True}, b""

    def resize(self, head: Head, _: Body) -> Reply:
        with self._reached(head) as execution:
            if execution.control.stdin is None:
                raise NoTerminal
            execution.control.stdin.resize(int(head["cols"]), int(head["rows"]))
            execution.about["screen"] = [int(head["cols"]), int(head["rows"])]
        return {"ok": True}, b""

    def cancel(self, head: Head, _: Body) -> Reply:
        execution = self.executions.find(str(head["execution"]))
        if not execution.done.is_set():
            execution.control.cancel()
            execution.done.wait(_CANCEL_SECONDS)
        return {"ok": True}, b""

    @contextmanager
    def _reached(self, head: Head) -> Iterator[Execution]:
        """A running execution. When it ends meanwhile, that is the reason why it cannot be reached."""
        execution = self.executions.find(str(head["execution"]))
        try:
            if not execution.done.is_set() and not execution.control.begun:
                raise Refused("not_begun")
            yield execution
        except (NotReachable, StdinClosed, NoTerminal) as exc:
            if execution.done.is_set() or isinstance(exc, NotReachable):
                raise Refused("execution_ended") from exc
            raise

    def _watch(self, execution: Execution, after: int, seconds: float, peer: int) -> None:
        """Each who waits takes a thread of the guest's; there are not more of them than it has room for."""
        if seconds <= 0 or execution.log.ended or execution.log.total > after:
            return
        if not self.watchers.acquire(blocking=False):
            raise Refused("too_many_streams")
        try:
            execution.log.wait(after, seconds, peer)
        finally:
            self.watchers.release()


_VERBS: dict[str, Callable[[Session, Head, Body], Reply]] = {
    "prepare": Session.prepare,
    "adopt": Session.adopt,
    "describe": Session.describe,
    "run": Session.run,
    "list": Session.list,
    "signal": Session.signal,
    "input": Session.input,
    "resize": Session.resize,
    "cancel": Session.cancel,
}
_WAITING: dict[str, Callable[[Session, Head, int], Reply]] = {"tell": Session.tell, "read": Session.read}


def bind(head: Head, processes: Processes, files: tuple[int, int], places: Places) -> Session:
    """Tell the guest whom it serves. Everything of a tenant's comes with this one message."""
    limit = None if head["soft_disk"] is None else int(head["soft_disk"])
    largest = None if limit is None else limit + _PAGE  # whoever gets there is over the limit
    processes.identity = Identity(int(head["uid"]), int(head["gid"]), int(head["processes"]), files, largest)
    env = {str(name): str(value) for name, value in head["env"].items()}
    ground = Ground(processes, Drain(), env, places.home)
    shells = Shells(ground, places.shells)
    soft = None if limit is None else SoftLimit(limit, ground, shells.processes)
    roots = Roots(os.fsencode(places.home), tuple(map(os.fsencode, places.others)))
    return Session(
        bound=head,
        ground=ground,
        shells=shells,
        executions=Executions(int(head["executions"]), int(head["log_limit"]), places.run),
        output_limit=int(head["output_limit"]),
        oom=OomCounter(),
        aftermath=Aftermath(ground, soft),
        files=Files(ground, roots),
        watchers=threading.BoundedSemaphore(_MOST_WATCHERS),
    )


class Places(NamedTuple):
    """`run` is shared with the server, `shells` is the guest's own, `home` and `others` are the user's."""

    run: str
    shells: str
    home: str
    others: tuple[str, ...]


def _told_with(execution: Execution, new: bool) -> Reply:
    """Its result, and whether the very call that is answered began it."""
    head, body = execution.outcome()
    return {**head, "new": new}, body


def _work(head: Head, body: Body, execution: Execution) -> Work:
    screen = head["screen"]
    return Work(
        head["command"],
        float(head["timeout"]),
        head["cwd"],
        head["env"],
        stdin=body if head["stdin"] else None,
        open_stdin=head["open_stdin"] is True,
        screen=(int(screen[0]), int(screen[1])) if screen else None,
        control=execution.control,
    )
