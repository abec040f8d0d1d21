"""/v1/sessions, and two of the plain endpoints that people know: /create_session and /cleanup."""

from __future__ import annotations

from typing import Any

import gevent
from flask import Blueprint, Response, g, jsonify, request

from server.api import parse, scopes, session_models
from server.api.hangup import noticed
from server.api.limits import lease_of, wish_of
from server.api.transfers import still_authorized
from server.api.wiring import named, parts, tenant
from server.errors import Invalid
from server.records import COLD, HOT, PAUSED, WAKING
from server.store import Session
from server.times import timestamp

_STATES = {HOT: "running", PAUSED: "paused", COLD: "cold", WAKING: "cold"}

_SOON = 1.0  # second after which nobody's first command is on its way any more

bp = Blueprint("sessions", __name__)


@bp.post("/create_session")
def create_session() -> Response:
    return _create()[0]


@bp.post("/cleanup")
def cleanup() -> Response:
    asked = parse.body_of(session_models.Cleanup)
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
    asked = parse.query_of(session_models.ListSessions, fields)
    if len(metadata) > 32:
        raise Invalid("metadata", "Filter by 32 labels at most.")
    found, following = parts().sessions.list(
        tenant(), asked.user_id, metadata, asked.cursor or "", asked.limit
    )
    return jsonify({"sessions": [as_json(session) for session in found], "next_cursor": following})


@bp.get("/v1/sessions/<session_id>")
def get(session_id: str) -> Response:
    session = parts().sessions.get(tenant(), named(session_id))
    return jsonify({**as_json(session), "disk_used": parts().sessions.disk_used(session)})


@bp.delete("/v1/sessions/<session_id>")
def delete(session_id: str) -> tuple[str, int]:
    _close(session_id)
    return "", 204


@bp.post("/v1/sessions/<session_id>/extend")
def extend(session_id: str) -> Response:
    lease = lease_of(parse.body_of(session_models.Extend).timeout, parts().config)
    return jsonify(as_json(parts().sessions.extend(tenant(), named(session_id), lease)))


@bp.post("/v1/sessions/<session_id>/pause")
def pause(session_id: str) -> Response:
    asked = parse.body_of(session_models.Pause)
    return jsonify(as_json(parts().sessions.pause(tenant(), named(session_id), asked.cold)))


@bp.post("/v1/sessions/<session_id>/resume")
def resume(session_id: str) -> Response:
    parse.body_of(session_models.NoFields)
    return jsonify(as_json(parts().sessions.resume(tenant(), named(session_id))))


def _create() -> tuple[Response, bool]:
    asked = parse.body_of(session_models.CreateSession)
    wish = wish_of(asked, parts().config)
    wait = parse.query_of(session_models.Wait, request.args.to_dict()).wait
    if session_models.names_uploads(asked.files, asked.datasets):
        scopes.need("files")
    files = parts().placing.wanted(tenant(), asked.files or [])
    peer = request.environ.get("gunicorn.socket") if wait else None
    with noticed(peer, check=still_authorized()):
        session, new, mine = parts().sessions.open(tenant(), wish, parse.idempotency(), wait)
    g.log["session"] = session.id
    if session.phase == HOT:
        parts().sessions.greet(session)
        gevent.spawn_later(_SOON, parts().sessions.meet, session)
    answer = {"status": "created" if new else "existing", **as_json(session)}
    if files:
        close = new and session.idempotency_key is None
        placed = parts().placing.place(session, files, close, again=new and not mine)
        answer["files"] = [{"file_id": one.upload, "path": one.name, "size": one.size} for one in placed]
    return jsonify(answer), new


def _close(session_id: str) -> None:
    parts().executions.settle(tenant(), named(session_id))
    parts().sessions.close(tenant(), session_id)


def as_json(session: Session) -> dict[str, Any]:
    return {
        "session_id": session.id,
        "state": _STATES[session.phase],
        "state_reason": session.phase_reason or "opened",
        "state_since": timestamp(session.phase_since or session.created_at),
        "user_id": session.user_id,
        "image": session.image,
        "memory": session.memory,
        "cpus": session.cpus,
        "timeout": session.lease,
        "created_at": timestamp(session.created_at),
        "last_used_at": timestamp(session.last_used_at),
        "expires_at": timestamp(session.expires_at),
        "metadata": session.metadata,
        "workspace": session.workspace,
        "disk": session.disk,
        "datasets": list(session.datasets),
        "checkpoint": session.checkpoint,
        "ephemeral": bool(session.ephemeral),
    }
