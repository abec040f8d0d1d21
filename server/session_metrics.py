"""What a session uses, now and over the last hour, as the keeper reads it off the host. No guest is asked."""

from __future__ import annotations

from dataclasses import dataclass

from server.keeper_client import KeeperClient
from server.sessions import Sessions
from server.store import Session


@dataclass(frozen=True)
class Sample:
    """At a moment: CPU seconds since the sandbox began, CPUs in use since the sample before, and so on."""

    at: float
    cpu_seconds: float | None
    cpus: float | None
    memory: int | None
    memory_peak: int | None
    processes: int | None
    disk_used: int | None


@dataclass(frozen=True)
class Measured:
    session: Session
    interval: float
    now: Sample
    samples: list[Sample]


class SessionMetrics:
    def __init__(self, sessions: Sessions, keeper: KeeperClient) -> None:
        self._sessions = sessions
        self._keeper = keeper

    def look(self, tenant: str, session_id: str, seconds: float) -> Measured:
        """With the samples of so many seconds. Looking neither renews the lease nor wakes anything."""
        session = self._sessions.get(tenant, session_id)
        told = self._keeper.usage(session.id, seconds)
        samples = [Sample(*sample) for sample in told["samples"]]
        return Measured(session, told["interval"], Sample(*told["now"]), samples)
