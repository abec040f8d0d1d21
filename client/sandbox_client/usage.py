"""What a session uses: now, and in samples of the last hour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from .errors import UnexpectedAnswer
from .records import Record, known_fields, read_times


@dataclass(frozen=True)
class UsageSample(Record):
    """At a moment. `cpus` is how many were in use since the sample before; sizes are in bytes.

    What the server cannot tell is None.
    """

    at: datetime | None = None
    cpu_seconds: float | None = None
    cpus: float | None = None
    memory: int | None = None
    memory_peak: int | None = None
    processes: int | None = None
    disk_used: int | None = None


@dataclass(frozen=True)
class SessionMetrics(Record):
    """What a session uses `now`, within which limits, and what it used, oldest first."""

    session_id: str
    now: UsageSample
    samples: tuple[UsageSample, ...] = field(default=(), repr=False)
    interval: float = 0
    cpus_limit: float | None = None
    memory_limit: int | None = None
    disk_limit: int | None = None


def session_metrics(answer: Mapping[str, Any]) -> SessionMetrics:
    known = known_fields(SessionMetrics, answer, required="now")
    known["now"] = _sample(known["now"])
    known["samples"] = tuple(map(_sample, known.get("samples", ())))
    return SessionMetrics(**known)


def _sample(told: Any) -> UsageSample:
    if not isinstance(told, Mapping):
        raise UnexpectedAnswer("The server's answer has no samples. Is this url a sandbox server?")
    known = known_fields(UsageSample, told)
    read_times(known, "at")
    return UsageSample(**known)
