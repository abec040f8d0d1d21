"""Which commands run, and what the last ones came to, so that a repeated request never runs twice.

The server may lose its connection, or its life, after a command was sent. It asks again with the same id:
a running command is waited for, a finished one is answered from here, a forgotten one is refused.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Callable, Tuple

from .protocol import Head

Answer = Tuple[Head, bytes]

_KEPT_RESULTS = 64
_KEPT_BYTES = 4 << 20
_KNOWN_IDS = 1024


class TooManyExecutions(Exception):
    """As many commands run at once as may."""


class Conflict(Exception):
    """The id belongs to a different command."""


class Forgotten(Exception):
    """The command has run, but its result is no longer kept."""


@dataclass
class _Execution:
    fingerprint: str
    done: threading.Event = field(default_factory=threading.Event)
    answer: Answer | None = None
    refusal: Exception | None = None


class Executions:
    def __init__(self, most: int) -> None:
        self._most = most
        self._running = 0
        self._kept_bytes = 0
        self._known: OrderedDict[str, _Execution] = OrderedDict()
        self._answered: deque[_Execution] = deque()
        self._lock = threading.Lock()

    def once(self, name: str, fingerprint: str, patience: float, run: Callable[[], Answer]) -> Answer:
        with self._lock:
            known = self._known.get(name)
            if known is None:
                mine = self._admit(name, fingerprint)
        if known is not None:
            return _answer_of(known, fingerprint, patience)
        try:
            answer = run()
        except Exception as exc:  # whatever it is, who waits for the same command gets it too
            self._withdraw(name, exc)
            raise
        self._finish(mine, answer)
        return answer

    def _admit(self, name: str, fingerprint: str) -> _Execution:
        if self._running >= self._most:
            raise TooManyExecutions
        self._running += 1
        execution = self._known[name] = _Execution(fingerprint)
        return execution

    def _withdraw(self, name: str, refusal: Exception) -> None:
        """It never ran, so it may be asked for again."""
        with self._lock:
            self._running -= 1
            execution = self._known.pop(name)
        execution.refusal = refusal
        execution.done.set()

    def _finish(self, execution: _Execution, answer: Answer) -> None:
        with self._lock:
            self._running -= 1
            execution.answer = answer
            self._answered.append(execution)
            self._kept_bytes += len(answer[1])
            self._forget()
        execution.done.set()

    def _forget(self) -> None:
        """Oldest first: results beyond the cap lose their answer, ids beyond theirs are dropped."""
        while len(self._answered) > _KEPT_RESULTS or (
            self._kept_bytes > _KEPT_BYTES and len(self._answered) > 1
        ):
            old = self._answered.popleft()
            assert old.answer is not None
            self._kept_bytes -= len(old.answer[1])
            old.answer = None
        while len(self._known) > _KNOWN_IDS and next(iter(self._known.values())).done.is_set():
            self._known.popitem(last=False)


def _answer_of(known: _Execution, fingerprint: str, patience: float) -> Answer:
    if known.fingerprint != fingerprint:
        raise Conflict
    known.done.wait(patience)
    if known.refusal is not None:
        raise known.refusal
    if known.answer is None:
        raise Forgotten
    return known.answer
