"""What a request's function finds: the parts that `build` put together, and who is asking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flask import current_app, g

from server.api.limiting import Limiting
from server.api.parse import LargeBodies
from server.api.turns import Turns
from server.audit.journal import Journal
from server.config import Config
from server.executions import Executions
from server.exposition import Exposition
from server.files import Files
from server.guest_bulk_client import GuestBulk
from server.keys import Keys
from server.meters import Meters
from server.placing import Placing
from server.readiness import Readiness
from server.runs import Runs
from server.session_metrics import SessionMetrics
from server.sessions import Sessions
from server.snapshots import Snapshots
from server.spending import Spending
from server.spool import Spool
from server.store import Key
from server.tenants import Tenants
from server.tickets import Tickets
from server.uploads import Uploads
from server.workspaces import Workspaces


@dataclass(frozen=True)
class Parts:
    config: Config
    journal: Journal
    carry_over: Callable[[], int]
    sessions: Sessions
    spending: Spending
    executions: Executions
    runs: Runs
    snapshots: Snapshots
    workspaces: Workspaces
    files: Files
    bulk: GuestBulk
    tickets: Tickets
    tenants: Tenants
    keys: Keys
    doctor: Callable[[], dict[str, Any]]
    is_revoked: Callable[[str], bool]  # or expired, or its tenant suspended or gone
    readiness: Readiness
    large_bodies: LargeBodies
    spool: Spool
    turns: Turns
    uploads: Uploads
    placing: Placing
    limits: Limiting
    leaks: Callable[[], dict[str, list[str]]]
    meters: Meters
    exposition: Exposition
    session_metrics: SessionMetrics


def parts() -> Parts:
    found: Parts = current_app.extensions["sandbox"]
    return found


def key() -> Key:
    """The key that the request came with, itself or by a ticket."""
    found: Key = g.key
    return found


def tenant() -> str:
    return key().tenant


def named(session_id: str) -> str:
    """For the log line; an id that cannot be one of ours is looked up like any other, and not found."""
    g.log["session"] = session_id[:64]
    return session_id
