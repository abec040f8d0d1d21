"""/v1/sessions, and two of the plain endpoints that people know: /create_session and /cleanup."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, g, jsonify, request

from server.api import models, parse
from server.api.limits import lease_of, wish_of
from server.api.wiring import named, parts, tenant
from server.errors import Invalid
from server.store import Session
from server.times import timestamp

bp = Blueprint("sessions", __name__)


@bp.post("/create_session")
def create_session() -> Response:
    return _create()[0]


@bp.post("/cleanup")
def cleanup() -> Response:
    asked = parse.body_of(models.Cleanup)
    _close(asked.session_id)
    return jsonify({"session_id": asked.session_id, "status": "closed"})


@bp.post("/v1/sessions")
def create() -> tuple[Response, int]:
    response, new = _create()
    return response, 201 if new else 200


@bp.get("/v1/sessions")
def list_sessions() -> Response:
    fields = request.args.to_dict()
    metadata = {name[9:]: fields.pop(name) for name in list(fields) if name.startswith("metadata.")}
    asked = parse.query_of(models.ListSessions, fields)
    if len(metadata) > 32:
        raise Invalid("metadata", "Filter by 32 labels at most.")
    found, following = parts().sessions.list(
        tenant(), asked.user_id, metadata, asked.cursor or "", asked.limit
    )
    return jsonify({"sessions": [_as_json(session) for session in found], "next_cursor": following})


@bp.get("/v1/sessions/<session_id>")
def get(session_id: str) -> Response:
    return jsonify(_as_json(parts().sessions.get(tenant(), named(session_id))))


@bp.delete("/v1/sessions/<session_id>")
def delete(session_id: str) -> tuple[str, int]:
    _close(session_id)
    return "", 204


@bp.post("/v1/sessions/<session_id>/extend")
def extend(session_id: str) -> Response:
    lease = lease_of(parse.body_of(models.Extend).timeout, parts().config)
    return jsonify(_as_json(parts().sessions.extend(tenant(), named(session_id), lease)))


def _create() -> tuple[Response, bool]:
    asked = parse.body_of(models.CreateSession)
    wish = wish_of(asked, parts().config)
    session, new = parts().sessions.open(tenant(), wish, parse.idempotency())
    g.log["session"] = session.id
    return jsonify({"status": "created" if new else "existing", **_as_json(session)}), new


def _close(session_id: str) -> None:
    parts().sessions.close(tenant(), named(session_id))


def _as_json(session: Session) -> dict[str, Any]:
    return {
        "session_id": session.id,
        "state": session.state,
        "user_id": session.user_id,
        "image": session.image,
        "memory": session.memory,
        "cpus": session.cpus,
        "timeout": session.lease,
        "created_at": timestamp(session.created_at),
        "last_used_at": timestamp(session.last_used_at),
        "expires_at": timestamp(session.expires_at),
        "metadata": session.metadata,
    }
