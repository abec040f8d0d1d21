"""When to try again, after how long a pause, and when to give up.

A request is sent again only where nothing can run twice: when no connection was made, or when it is
repeatable (it carries an Idempotency-Key, or is a GET or DELETE) and the server or the network says that
another try may help. An answer that did not come in time is not waited for again: the caller's time is over.
Whoever follows an execution has no such time, and holds out while a server restarts: see Holdout.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .errors import (
    AnswerTimeout,
    ConfigurationError,
    ConnectionFailed,
    ConnectionLost,
    SandboxError,
    StdinFull,
)

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
PAUSES_TOTAL = 30.0  # a call never waits longer than this between its tries, all pauses together


@dataclass(frozen=True)
class Patience:
    """How long to wait, in seconds, and how often to try again.

    `silence`: a stream without a sign of life for so long is broken; the server sends one every 10 seconds.
    """

    connect_timeout: float
    read_timeout: float
    retries: int
    reconnect_timeout: float
    silence: float = 30.0

    def __post_init__(self) -> None:
        times = (self.connect_timeout, self.read_timeout, self.reconnect_timeout)
        if min(times) <= 0 or self.retries < 0:
            raise ConfigurationError(
                "connect_timeout, read_timeout and reconnect_timeout must be above 0, retries 0 or more."
            )


class Tries(Protocol):
    """Decides after each failure of one call."""

    def pause(self, error: SandboxError) -> float | None:
        """How long to wait before the next try, or None to give up."""


class Retries:
    """A few tries: for a call that somebody waits for."""

    def __init__(self, patience: Patience, repeatable: bool) -> None:
        self._left = patience.retries
        self._repeatable = repeatable
        self._attempt = 0
        self._waited = 0.0

    def pause(self, error: SandboxError) -> float | None:
        pause = _pause(self._attempt, error.retry_after)
        self._attempt += 1
        self._waited += pause
        out_of_patience = self._attempt > self._left or self._waited > PAUSES_TOTAL
        return None if out_of_patience or not _may_repeat(error, self._repeatable) else pause


class Holdout:
    """Tries until nothing was achieved for `patience.reconnect_timeout`, or `within` if that is shorter.

    Only for what has `reached` the server. While no connection was ever made there is nothing to hold out
    for, and the few tries of any other call must do.
    """

    def __init__(
        self,
        patience: Patience,
        repeatable: bool = True,
        reached: bool = False,
        within: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bound = min(patience.reconnect_timeout, float("inf") if within is None else within)
        self._repeatable = repeatable
        self._few = Retries(patience, repeatable)
        self._reached = reached
        self._clock = clock
        self._since = clock()
        self._attempt = 0

    def progress(self) -> None:
        """Something came through: patience starts anew."""
        self._reached, self._since, self._attempt = True, self._clock(), 0

    def pause(self, error: SandboxError) -> float | None:
        self._reached = self._reached or isinstance(error, (ConnectionLost, StdinFull))
        if not self._reached:
            return self._few.pause(error)
        again = self._repeatable and isinstance(error, AnswerTimeout)
        again = again or _may_repeat(error, self._repeatable)
        pause = _pause(self._attempt, error.retry_after)
        self._attempt += 1
        return pause if again and self._clock() + pause - self._since <= self._bound else None


def _pause(attempt: int, retry_after: float | None) -> float:
    backoff = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**attempt) * random.uniform(0.5, 1.0)
    return max(backoff, retry_after or 0.0)


def _may_repeat(error: SandboxError, repeatable: bool) -> bool:
    if isinstance(error, (ConnectionFailed, StdinFull)):  # nothing was sent, or nothing of it was taken
        return True
    if not repeatable or isinstance(error, AnswerTimeout):
        return False
    asked_to_wait = error.status == 429 and error.retry_after is not None
    return error.retryable or asked_to_wait or isinstance(error, ConnectionLost)
