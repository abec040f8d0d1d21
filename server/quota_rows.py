"""Quotas in the store: what tenants may have, what their sessions hold, whether there is room for another.

Nothing is counted that could be lost: what is held is the sum over the rows of live sessions, each time.
"""

from __future__ import annotations

import sqlite3
import time

from server.config import Config
from server.errors import HostFull, Invalid, QuotaExceeded, TooManySessions
from server.quotas import Quotas, quotas_of
from server.records import WAKING
from server.store import Session, Store
from server.tenant_errors import TenantSuspended

# A session without a sandbox takes no memory; one that is being opened, or woken, is about to.
HAS_SANDBOX = f"(state = 'opening' OR sandbox IS NOT NULL OR phase = '{WAKING}')"
_HELD = f"""SELECT count(*) AS sessions,
                   coalesce(sum(memory) FILTER (WHERE {HAS_SANDBOX}), 0) AS memory,
                   coalesce(sum(cpus) FILTER (WHERE {HAS_SANDBOX}), 0.0) AS cpus,
                   coalesce(sum(disk), 0) AS disk
            FROM sessions WHERE state != 'ended' AND tenant = :tenant"""
_WORKSPACES = "SELECT count(*) FROM workspaces WHERE tenant = :tenant"
_PROMISED = f"SELECT coalesce(sum(memory), 0) FROM sessions WHERE state != 'ended' AND {HAS_SANDBOX}"

# So long may those who wait in line keep all others from the host's memory; then for as long they may not.
HOLD_SECONDS = 10.0
_MOST_KNOWN = 1024
_MOMENT = 0.1


class QuotaRows:
    def __init__(self, config: Config, store: Store) -> None:
        self._config = config
        self._store = store
        self._known: dict[str, Quotas] = {}
        self._recent: dict[str, tuple[Quotas, float]] = {}

    def of(self, tenant: str) -> Quotas:
        """As they were a moment ago: asked several times for each request."""
        quotas, until = self._recent.get(tenant, (None, 0.0))
        if quotas is None or until < time.monotonic():
            if len(self._recent) >= _MOST_KNOWN:
                self._recent.clear()
            quotas = self._quotas(self._store.limits(tenant))
            self._recent[tenant] = (quotas, time.monotonic() + _MOMENT)
        return quotas

    def held(self, tenant: str, user: str | None = None) -> dict[str, float]:
        """What live sessions hold, by the quota's name. Disk space is what they may take."""
        values = {"tenant": tenant, "user": user}
        if user is not None:
            return dict(self._store.quickly(f"{_HELD} AND user_id = :user", values).fetchone())
        return {
            **dict(self._store.quickly(_HELD, values).fetchone()),
            "workspaces": self._store.quickly(_WORKSPACES, values).fetchone()[0],
        }

    def admit(self, connection: sqlite3.Connection, wanted: Session) -> None:
        """In the transaction that reserves: raises if a quota, or the host, has no room for `wanted`.

        While others who wait in line for the host's memory hold the door, nobody walks past them. A row that
        would hold it for longer than anybody may is of a clock that was set back.
        """
        self.admit_from_line(connection, wanted)
        now = wanted.created_at
        held = "SELECT 1 FROM waiting WHERE until > ? AND until <= ?"
        if connection.execute(held, (now, now + HOLD_SECONDS)).fetchone() is not None:
            host = connection.execute("SELECT memory FROM host").fetchone()
            raise HostFull(connection.execute(_PROMISED).fetchone()[0], host["memory"])

    def admit_from_line(self, connection: sqlite3.Connection, wanted: Session) -> None:
        quotas, held = self._standing(connection, wanted.tenant)
        for name in ("memory", "cpus"):  # what can never fit is not worth waiting for
            allowed = quotas.tenant[name]
            if allowed is not None and getattr(wanted, name) > allowed:
                _check(name, held[name], getattr(wanted, name), allowed, "tenant")
        most = quotas.most("sessions")
        if held["sessions"] >= most:
            raise TooManySessions(held["sessions"], most)
        self._check_workspaces(connection, wanted, quotas.tenant["workspaces"])
        self._check_sizes(connection, wanted, ("memory", "cpus", "disk"))

    def _check_workspaces(
        self, connection: sqlite3.Connection, wanted: Session, allowed: float | None
    ) -> None:
        """Whether there may be one more, if it is one more."""
        if wanted.workspace is None or allowed is None:
            return
        sql = "SELECT 1 FROM workspaces WHERE tenant = ? AND name = ?"
        if connection.execute(sql, (wanted.tenant, wanted.workspace)).fetchone() is not None:
            return
        kept = connection.execute(_WORKSPACES, {"tenant": wanted.tenant}).fetchone()[0]
        if kept >= allowed:
            words = f"This tenant keeps {kept} workspaces, as many as it may. Delete one first."
            raise QuotaExceeded("workspaces", kept, allowed, detail=words)

    def admit_waking(self, connection: sqlite3.Connection, session: Session) -> None:
        """For one that is counted already, but has had no sandbox for a while."""
        self._check_sizes(connection, session, ("memory", "cpus"))

    def _standing(self, connection: sqlite3.Connection, tenant: str) -> tuple[Quotas, dict[str, int]]:
        sql = "SELECT limits, suspended_at, deleted_at FROM tenants WHERE id = ?"
        row = connection.execute(sql, (tenant,)).fetchone()
        if row is not None and (row["suspended_at"] is not None or row["deleted_at"] is not None):
            raise TenantSuspended  # since it was let in
        held = connection.execute(_HELD, {"tenant": tenant}).fetchone()
        return self._quotas("{}" if row is None else row["limits"]), dict(held)

    def _check_sizes(
        self, connection: sqlite3.Connection, wanted: Session, of_users: tuple[str, ...]
    ) -> None:
        quotas, held = self._standing(connection, wanted.tenant)
        for name in ("memory", "cpus"):
            _check(name, held[name], getattr(wanted, name), quotas.tenant[name], "tenant")
        if wanted.user_id is not None:
            user = {"tenant": wanted.tenant, "user": wanted.user_id}
            theirs = connection.execute(f"{_HELD} AND user_id = :user", user).fetchone()
            for name in of_users:
                _check(name, theirs[name], getattr(wanted, name), quotas.user[name], "user")
        self._check_host(connection, wanted)

    def _check_host(self, connection: sqlite3.Connection, wanted: Session) -> None:
        """What the keeper has said of its host. Before it has, nothing can be opened anyway."""
        host = connection.execute("SELECT memory, cpus FROM host").fetchone()
        if host is None:
            return
        if wanted.cpus > host["cpus"]:
            raise Invalid("cpus", f"'cpus' may be {host['cpus']:g} at most: the host has no more.")
        if wanted.memory > host["memory"]:
            raise Invalid("memory", f"'memory' may be {host['memory']} bytes at most: the host has no more.")
        promised = connection.execute(_PROMISED).fetchone()[0]
        if promised + wanted.memory > host["memory"]:
            raise HostFull(promised, host["memory"])

    def _quotas(self, own: str) -> Quotas:
        if own not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[own] = quotas_of(self._config, own)
        return self._known[own]

    # For the keeper.

    def describe_host(self, memory: int, cpus: float) -> None:
        """What there is for sessions, all together."""
        with self._store.writing() as connection:
            connection.execute("INSERT OR REPLACE INTO host VALUES (1, ?, ?)", (memory, cpus))

    def stand_in_line(self, session: str, until: float) -> None:
        """For the host's memory. Until then nobody who does not stand in line gets any."""
        self._store.quickly("INSERT OR REPLACE INTO waiting VALUES (?, ?)", (session, until))

    def leave_line(self, session: str | None = None) -> None:
        """None: all of them, as nobody waits yet."""
        sql = "DELETE FROM waiting WHERE ? IN (session, '')"
        if self._store.quickly("SELECT 1 FROM waiting"):
            self._store.quickly(sql, (session or "",))

    def promised(self) -> int:
        return int(self._store.quickly(_PROMISED).fetchone()[0])


def _check(name: str, held: float, more: float, allowed: float | None, scope: str) -> None:
    if allowed is None or held + more <= allowed:
        return
    if more > allowed:  # closing others does not help
        words = (
            f"This {scope} may have {allowed:.10g} of '{name}' in all, less than was asked for: ask for less."
        )
        refusal = QuotaExceeded(name, held, allowed, scope, words)
        refusal.retryable = False
        raise refusal
    raise QuotaExceeded(name, held, allowed, scope)
