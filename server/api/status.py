"""Is it alive, is it ready, what is it? No key needed: it tells no more than a stranger may know."""

from __future__ import annotations

import sqlite3
import time

from flask import Blueprint, Response, jsonify

import server
from server.api.wiring import parts
from server.errors import Unavailable
from server.guest import protocol

bp = Blueprint("status", __name__)


@bp.get("/healthz")
def healthz() -> Response:
    """This process answers."""
    return jsonify({"status": "ok"})


@bp.get("/readyz")
def readyz() -> tuple[Response, int]:
    """Sessions can be opened: 503 with the reasons if not. `degraded`: they can, but the wall has a gap."""
    checks: dict[str, str] = {"store": _store(), "keeper": "ok", "engine": "ok", "image": "ok"}
    wall: dict[str, str] | None = None
    try:
        told = parts().keeper.check()
    except Unavailable as exc:
        checks["keeper"] = exc.detail
    else:
        checks |= told["problems"]
        wall = told["wall"]
    ready = all(value == "ok" for value in checks.values())
    status = "unavailable" if not ready else "degraded" if wall else "checking" if wall is None else "ready"
    return jsonify({"status": status, "checks": checks, "wall": wall or {}}), 200 if ready else 503


@bp.get("/v1/version")
def version() -> Response:
    return jsonify({"version": server.__version__, "api": "v1", "guest_protocol": protocol.VERSION})


def _store() -> str:
    try:
        parts().store.check_writable(time.time())
    except sqlite3.Error as exc:
        return f"the store cannot be written: {exc}"
    return "ok"
