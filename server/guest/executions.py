"""Which commands run, and what the last ones came to, so that a repeated request never runs twice.

The server may lose its connection, or its life, after a command was sent. It asks again with the same id:
a running command is waited for, a finished one is answered from here, a forgotten one is refused. Results and
logs are kept of the last ones only, within a bound.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from typing import Iterable, Tuple

from .control import Control
from .log import Log
from .protocol import Head
from .usage import Usage

Answer = Tuple[Head, bytes]

_KEPT_RESULTS = 64
_KEPT_BYTES = 4 << 20
_KEPT_LOGS = 4  # as many logs of full size as all that are kept may be large
_LARGE_LOGS = 4  # commands running at once whose logs may have the full size
_SMALLER = 8
_KNOWN_IDS = 1024
_REMEMBERED_IDS = 10_000  # a quarter of a kilobyte each


class TooManyExecutions(Exception):
    """As many commands run at once as may."""


class Conflict(Exception):
    """The id belongs to a different command."""


class Forgotten(Exception):
    """The command has run, but its result is no longer kept."""


class Unknown(Exception):
    """There is no execution of that id."""


class Execution:
    """One run of a command: how to reach it while it runs, what is kept of it afterwards."""

    def __init__(
        self,
        name: str,
        fingerprint: str,
        about: Head,
        log: Log,
        started_at: float | None = None,
        ended_at: float | None = None,
    ) -> None:
        self.name = name
        self.fingerprint = fingerprint
        self.about = about
        self.log = log
        self.control = Control()
        self.started_at = time.time() if started_at is None else started_at
        self.ended_at = ended_at
        self.done = threading.Event()
        self.answer: Answer | None = None
        self.size = 0  # of the answer, in bytes
        self.refusal: Exception | None = None
        self.promised = False  # somebody was told that it runs: it stays known, whatever comes of it

    @property
    def status(self) -> str:
        if self.done.is_set():
            return "ended"
        return "running" if self.control.begun else "queued"

    def outcome(self) -> Answer:
        if self.refusal is not None:
            raise self.refusal
        if self.answer is None:
            raise Forgotten
        return self.answer

    def usage(self) -> Usage:
        meter = self.control.meter
        if self.answer is not None:
            return Usage(self.answer[0]["cpu_seconds"], self.answer[0]["peak_memory"])
        return Usage(0.0, None) if meter is None or self.done.is_set() else meter.now()


class Executions:
    def __init__(self, most: int, log_limit: int, place: str) -> None:
        self._most = most
        self._log_limit = log_limit
        self._place = place
        self._running = 0
        self._kept_results = 0  # bytes
        self._kept_logs = 0
        self._known: dict[str, Execution] = {}
        self._series: dict[str, int] = {}
        self._ended: deque[Execution] = deque()  # with what is kept of them
        self._forgotten: deque[Execution] = deque()  # known by their ids alone
        self._remembered: dict[str, str] = {}  # of those older still: name and fingerprint
        self._lock = threading.Lock()

    def admit(self, name: str, fingerprint: str, about: Head, again: bool) -> tuple[Execution, bool]:
        """The execution of that name, and whether it is new: then the caller carries it out.

        With `again` there is a series of that name, one after the other: the one that runs, else the next.
        """
        with self._lock:
            if again:
                name = self._in_series(name)
            known = self._known.get(name)
            if known is None:
                self._refuse_remembered(name, fingerprint)
                if self._running >= self._most:
                    raise TooManyExecutions
                self._running += 1
                known = self._known[name] = Execution(name, fingerprint, about, self._new_log())
                return known, True
        if known.fingerprint != fingerprint:
            raise Conflict
        return known, False

    def _refuse_remembered(self, name: str, fingerprint: str) -> None:
        """What the caller has a name for runs once, however long ago that was."""
        before = self._remembered.get(name)
        if before is not None:
            raise Forgotten if before == fingerprint else Conflict

    def _in_series(self, name: str) -> str:
        number = self._series.get(name, 0)
        last = self._known.get(f"{name}.{number}")
        if last is None or last.done.is_set():
            number += 1
        self._series[name] = number
        return f"{name}.{number}"

    def _new_log(self) -> Log:
        """Beyond a few at once the logs are smaller, so that many commands cannot fill the host's disk."""
        crowded = self._running > _LARGE_LOGS
        return Log(self._log_limit // _SMALLER if crowded else self._log_limit, self._place)

    def promise(self, execution: Execution) -> None:
        """From here on it stays known, whatever comes of it; raises what it was refused for before."""
        with self._lock:
            if execution.refusal is not None and not execution.promised:
                raise execution.refusal
            execution.promised = True

    def find(self, name: str) -> Execution:
        with self._lock:
            found = self._known.get(name)
        if found is None:
            raise Unknown
        return found

    def list(self) -> list[Execution]:
        """Those that run and those whose results are kept, oldest first."""
        with self._lock:
            return [one for one in self._known.values() if one.answer is not None or not one.done.is_set()]

    def kept(self) -> tuple[Execution, ...]:
        """Those whose results are kept, oldest first."""
        with self._lock:
            return tuple(one for one in self._ended if one.answer is not None)

    def named(self) -> dict[str, str]:
        """Names that callers have given, or have a key for, with their fingerprints, oldest first."""
        with self._lock:
            known = {one.name: one.fingerprint for one in self._known.values() if one.fingerprint}
            return {**self._remembered, **known}

    def series(self) -> dict[str, int]:
        """How far each series has come."""
        with self._lock:
            return dict(self._series)

    def recall(self, ended: Iterable[Execution], named: dict[str, str], series: dict[str, int]) -> None:
        """What the same session ran in an earlier sandbox, of which only results and names are left."""
        with self._lock:
            self._series.update(series)
            self._remembered.update(named)
            for execution in ended:
                self._remembered.pop(execution.name, None)
                self._known[execution.name] = execution
                self._ended.append(execution)
                self._weigh(execution, 1)
            self._forget()
            self._forget_names()

    def finish(self, execution: Execution, answer: Answer) -> None:
        with self._lock:
            execution.answer = answer
            self._conclude(execution)

    def refuse(self, execution: Execution, refusal: Exception) -> None:
        """It never ran. It may be asked for again, unless somebody relies on having started it."""
        with self._lock:
            execution.refusal = refusal
            if not execution.promised and self._known.get(execution.name) is execution:
                del self._known[execution.name]
            self._conclude(execution)

    def _conclude(self, execution: Execution) -> None:
        self._running -= 1
        execution.ended_at = time.time()
        self._ended.append(execution)
        self._weigh(execution, 1)
        self._forget()
        execution.done.set()
        execution.log.end()
        execution.control.settle()

    def _forget(self) -> None:
        """Oldest first: those beyond the cap lose result and log, ids beyond theirs are dropped."""
        while len(self._ended) > _KEPT_RESULTS or (len(self._ended) > 1 and self._take_too_much()):
            old = self._ended.popleft()
            self._weigh(old, -1)
            old.answer = None
            old.log.close()
            self._forgotten.append(old)
        while len(self._forgotten) > _KNOWN_IDS:
            oldest = self._forgotten.popleft()
            if self._known.get(oldest.name) is oldest:
                del self._known[oldest.name]
                self._remember(oldest)

    def _remember(self, execution: Execution) -> None:
        if not execution.fingerprint:
            return  # its name was made up for it alone
        self._remembered[execution.name] = execution.fingerprint
        self._forget_names()

    def _forget_names(self) -> None:
        while len(self._remembered) > _REMEMBERED_IDS:
            del self._remembered[next(iter(self._remembered))]

    def _take_too_much(self) -> bool:
        return self._kept_results > _KEPT_BYTES or self._kept_logs > _KEPT_LOGS * self._log_limit

    def _weigh(self, execution: Execution, sign: int) -> None:
        if sign > 0 and execution.answer is not None:
            execution.size = _size(execution.answer)
        self._kept_results += sign * execution.size
        self._kept_logs += sign * min(execution.log.total, self._log_limit)


def _size(answer: Answer) -> int:
    """As it is told: a head with a long value, or many artifacts, can be larger than the body."""
    head, body = answer
    return len(body) + len(json.dumps(head))
