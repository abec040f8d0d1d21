"""What the server may ask of a bound guest: the `run` request, read, carried out and answered.

The server has checked what its callers sent; here only what would hurt the guest itself is looked at.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable

from . import oneoff
from .capture import Output
from .executions import Conflict, Executions, Forgotten, TooManyExecutions
from .ground import Ground
from .memory import OomCounter
from .processes import CannotStart, Identity, NoSuchDirectory, Processes
from .protocol import Body, Head
from .shells import LANGUAGES, ShellBusy, Shells, TooManyShells
from .streams import Drain
from .work import Outcome, Work

_QUEUE_GRACE = 15.0

_REFUSALS: dict[type[Exception], str] = {
    TooManyExecutions: "too_many_executions",
    TooManyShells: "too_many_shells",
    ShellBusy: "shell_busy",
    Conflict: "execution_conflict",
    Forgotten: "result_forgotten",
    NoSuchDirectory: "no_such_directory",
    CannotStart: "cannot_start",
}


class Refused(Exception):
    """The request cannot be carried out; `code` says why, in a word the server knows."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass
class Session:
    """A guest that knows for whom it works."""

    bound: Head
    ground: Ground
    shells: Shells
    executions: Executions
    output_limit: int
    oom: OomCounter

    def same(self, head: Head) -> bool:
        return head == self.bound

    def run(self, head: Head, body: Body) -> tuple[Head, bytes]:
        work = _work(head, body)
        patience = 2 * work.timeout + _QUEUE_GRACE
        name, fingerprint = str(head["execution"]), str(head["fingerprint"])
        try:
            return self.executions.once(name, fingerprint, patience, lambda: self._run(head, work))
        except tuple(_REFUSALS) as exc:
            raise Refused(_REFUSALS[type(exc)]) from exc
        except RuntimeError as exc:  # no room for a thread
            raise Refused("too_many_executions") from exc
        except OSError as exc:  # no room for a pipe or the command's text
            raise Refused("cannot_start") from exc

    def _run(self, head: Head, work: Work) -> tuple[Head, bytes]:
        kills = self.oom.count()
        started = time.monotonic()
        outcome = self._runner(head)(work)
        return _answer(outcome, time.monotonic() - started, self.oom.count() > kills)

    def _runner(self, head: Head) -> Callable[[Work], Outcome]:
        language, name = head["language"], head["shell"]
        if language not in LANGUAGES:
            raise Refused("bad_request")
        if name is not None:
            return lambda work: self.shells.run(language, name, work, Output(self.output_limit))
        if language == "bash":
            return lambda work: oneoff.run(work, self.ground, self.output_limit)
        return lambda work: self.shells.run_once(language, work, Output(self.output_limit))


def bind(head: Head, processes: Processes, files: tuple[int, int], place: str, home: str) -> Session:
    """Tell the guest whom it serves. Everything of a tenant's comes with this one message."""
    processes.identity = Identity(int(head["uid"]), int(head["gid"]), int(head["processes"]), files)
    env = {str(name): str(value) for name, value in head["env"].items()}
    ground = Ground(processes, Drain(), env, home)
    return Session(
        bound=head,
        ground=ground,
        shells=Shells(ground, place),
        executions=Executions(int(head["executions"])),
        output_limit=int(head["output_limit"]),
        oom=OomCounter(),
    )


def _work(head: Head, body: Body) -> Work:
    stdin = body if head["stdin"] else None
    return Work(head["command"], float(head["timeout"]), head["cwd"], head["env"], stdin)


def _answer(outcome: Outcome, seconds: float, oom: bool) -> tuple[Head, bytes]:
    """Three streams as head and tail in one body; `both` is left out where it equals the only one used."""
    captures = {**outcome.output.streams, "both": outcome.output.both}
    sizes: dict[str, Any] = {}
    body = bytearray()
    for name, capture in captures.items():
        if capture is None:
            continue
        first, last = capture.parts()
        sizes[name] = [len(first), len(last), capture.total]
        body += first + last
    head = {
        "ok": True,
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "timed_out": outcome.timed_out,
        "oom_killed": oom,
        "restarted": outcome.restarted,
        "cwd": outcome.cwd,
        "seconds": seconds,
        "sizes": sizes,
        "value": outcome.details.get("value"),
        "error": outcome.details.get("error"),
    }
    return head, bytes(body)
