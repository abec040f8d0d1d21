"""Which commands run, and what the last ones came to, so that a repeated request never runs twice.

The server may lose its connection, or its life, after a command was sent. It asks again with the same id:
a running command is waited for, a finished one is answered from here, a forgotten one is refused. Results and
logs are kept of the last ones only, within a bound.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Tuple

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


class TooManyExecutions(Exception):
    """As many commands run at once as may."""


class Conflict(Exception):
    """The id belongs to a different command."""


class Forgotten(Exception):
    """The command has run, but its result is no longer kept."""


class Unknown(Exception):
    """There is no execution of that id."""


@dataclass
class Execution:
    """One run of a command: how to reach it while it runs, what is kept of it afterwards."""

    name: str
    fingerprint: str
    about: Head
    log: Log
    control: Control = field(default_factory=Control)
    started_at: float = field(default_factory=time.time)
    ended_at: float | None = None
    done: threading.Event = field(default_factory=threading.Event)
    answer: Answer | None = None
    refusal: Exception | None = None
    promised: bool = False  # somebody was told that it runs: it stays known, whatever comes of it

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
                if self._running >= self._most:
                    raise TooManyExecutions
                self._running += 1
                known = self._known[name] = Execution(name, fingerprint, about, self._new_log())
                return known, True
        if known.fingerprint != fingerprint:
            raise Conflict
        return known, False

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

    def _take_too_much(self) -> bool:
        return self._kept_results > _KEPT_BYTES or self._kept_logs > _KEPT_LOGS * self._log_limit

    def _weigh(self, execution: Execution, sign: int) -> None:
        self._kept_results += sign * (len(execution.answer[1]) if execution.answer else 0)
        self._kept_logs += sign * min(execution.log.total, self._log_limit)
