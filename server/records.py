"""Tenants, keys and sessions as the store knows them."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Any

HOT, PAUSED, COLD, WAKING = "hot", "paused", "cold", "waking"  # phases of a running session
WAITING, SPENT = 1, 2  # of an ephemeral one: its one command is still to come, or was begun

# What a key may be good for. `admin` must be asked for: a key without a list of its own has the others.
TENANT_SCOPES = frozenset({"sessions:read", "sessions:write", "execute", "files"})
ADMIN = "admin"
SCOPES = TENANT_SCOPES | {ADMIN}


@dataclass(frozen=True)
class Tenant:
    id: str
    created_at: float
    suspended_at: float | None = None
    deleted_at: float | None = None
    limits: str = "{}"  # its own quotas, as JSON

    @property
    def state(self) -> str:
        return "active" if self.suspended_at is None else "suspended"


@dataclass(frozen=True)
class Key:
    """`tenant` is empty in the operator's own: such a key administers, and owns nothing."""

    id: str
    tenant: str
    name: str
    hash: str
    created_at: float
    revoked_at: float | None = None
    salt: str = ""
    scopes: frozenset[str] = TENANT_SCOPES
    expires_at: float | None = None
    replaced_by: str | None = None
    suspended: bool = False  # its tenant is

    def state(self, now: float) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "active" if self.expires_at is None or now < self.expires_at else "expired"


def key_of_row(row: sqlite3.Row) -> Key:
    values = dict(row)
    scopes = values["scopes"]
    values["scopes"] = TENANT_SCOPES if scopes is None else frozenset(scopes.split())
    values["suspended"] = bool(values["suspended"])
    return Key(**values)


@dataclass(frozen=True)
class Session:
    """A tenant's lease on one sandbox, as the store knows it."""

    id: str
    tenant: str
    user_id: str | None
    state: str
    image: str
    memory: int
    cpus: float
    lease: float
    metadata: dict[str, str]
    created_at: float
    last_used_at: float
    busy_until: float
    must_end_at: float
    sandbox: str | None = None
    address: str | None = None
    cause: str | None = None
    ended_at: float | None = None
    idempotency_key: str | None = None
    fingerprint: str | None = None
    volume: str | None = None
    workspace: str | None = None
    source: str | None = None
    disk: int = 0
    datasets: tuple[str, ...] = ()
    checkpoint: bool = False
    visit: bool = False
    phase: str = HOT
    phase_since: float | None = None
    phase_reason: str | None = None
    held: bool = False  # paused: something runs in it, and waits to go on; cold: it is getting a sandbox
    cold_at: float | None = None  # when it was last cold: what ran before is not known any more
    ephemeral: int = 0

    @property
    def expires_at(self) -> float:
        return min(self.last_used_at + self.lease, self.must_end_at)

    def is_due(self, now: float) -> bool:
        """A running command keeps its session alive; nothing keeps it beyond its hard end."""
        return now >= self.must_end_at or now >= max(self.last_used_at + self.lease, self.busy_until)


def cursor_of(session: Session) -> str:
    return f"{session.created_at!r}/{session.id}"


def values_of(session: Session) -> dict[str, Any]:
    kept = {name: json.dumps(getattr(session, name)) for name in ("metadata", "datasets")}
    return {**vars(session), **kept}


def session_of(row: sqlite3.Row | dict[str, Any]) -> Session:
    values = dict(row)
    values["metadata"] = json.loads(values["metadata"])
    values["datasets"] = tuple(json.loads(values["datasets"]))
    values["checkpoint"], values["visit"] = bool(values["checkpoint"]), bool(values["visit"])
    values["held"] = bool(values["held"])
    return Session(**values)
