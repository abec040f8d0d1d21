"""Is it alive, is it ready, what is it? No key needed: it tells no more than a stranger may know."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify

import server
from server.api.scopes import asked_by_operator
from server.api.wiring import parts
from server.guest import protocol

bp = Blueprint("status", __name__)


@bp.get("/healthz")
def healthz() -> Response:
    """This process answers."""
    return jsonify({"status": "ok"})


@bp.get("/readyz")
def readyz() -> tuple[Response, int]:
    """Sessions can be opened: 503 with the reasons if not. The operator gets the engine's words, too."""
    ready = parts().readiness.look()
    return jsonify(ready.as_json(asked_by_operator())), 200 if ready.is_ready else 503


@bp.get("/v1/version")
def version() -> Response:
    return jsonify({"version": server.__version__, "api": "v1", "guest_protocol": protocol.VERSION})
