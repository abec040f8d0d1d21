"""What a request's function finds: the parts that `build` put together, and who is asking."""

from __future__ import annotations

from dataclasses import dataclass

from flask import current_app, g

from server.api.parse import LargeBodies
from server.config import Config
from server.readiness import Readiness
from server.sessions import Sessions


@dataclass(frozen=True)
class Parts:
    config: Config
    sessions: Sessions
    readiness: Readiness
    large_bodies: LargeBodies


def parts() -> Parts:
    found: Parts = current_app.extensions["sandbox"]
    return found


def tenant() -> str:
    found: str = g.tenant
    return found
