"""What a request's function finds: the parts that `build` put together, and who is asking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flask import current_app, g

from server.api.parse import LargeBodies
from server.api.turns import Turns
from server.config import Config
from server.executions import Executions
from server.readiness import Readiness
from server.sessions import Sessions
from server.store import Key
from server.tickets import Tickets


@dataclass(frozen=True)
class Parts:
    config: Config
    sessions: Sessions
    executions: Executions
    tickets: Tickets
    is_revoked: Callable[[str], bool]
    readiness: Readiness
    large_bodies: LargeBodies
    turns: Turns


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
