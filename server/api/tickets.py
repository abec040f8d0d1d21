"""/v1/sessions/{id}/tickets: what a page puts into a URL instead of a key."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify

from server.api import models, parse
from server.api.wiring import key, named, parts, tenant
from server.times import timestamp

bp = Blueprint("tickets", __name__)


@bp.post("/v1/sessions/<session_id>/tickets")
def create_ticket(session_id: str) -> tuple[Response, int]:
    asked = parse.body_of(models.NewTicket)
    session = parts().sessions.get(tenant(), named(session_id))
    path = f"/v1/sessions/{session.id}/terminal"
    if asked.execution_id is not None:
        parts().executions.tell(tenant(), session.id, asked.execution_id)
        path = f"/v1/sessions/{session.id}/executions/{asked.execution_id}/events"
    ticket, until = parts().tickets.issue(
        asked.purpose, key().id, session.id, asked.execution_id or "", key_expires_at=key().expires_at
    )
    return jsonify({"ticket": ticket, "expires_at": timestamp(until), "url": f"{path}?ticket={ticket}"}), 201
