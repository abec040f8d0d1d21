"""Snapshots, fork, restore and undo."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, g, jsonify, request

from server.api import acts, parse, session_models, workspace_models
from server.api.sessions import as_json as session_as_json
from server.api.wiring import named, parts, tenant
from server.times import timestamp
from server.volume_rows import Snapshot

bp = Blueprint("snapshots", __name__)


@bp.post("/v1/sessions/<session_id>/snapshots")
def take(session_id: str) -> tuple[Response, int]:
    asked = parse.body_of(workspace_models.TakeSnapshot)
    taken, new = parts().snapshots.take(tenant(), named(session_id), asked.name, parse.idempotency())
    acts.note(snapshot=taken.id)
    return jsonify(_as_json(taken)), 201 if new else 200


@bp.get("/v1/sessions/<session_id>/snapshots")
def list_of_session(session_id: str) -> Response:
    return _listed(parts().snapshots.list(tenant(), named(session_id)))


@bp.get("/v1/snapshots")
def list_all() -> Response:
    return _listed(parts().snapshots.list(tenant()))


@bp.get("/v1/snapshots/<snapshot_id>")
def get(snapshot_id: str) -> Response:
    return jsonify(_as_json(parts().snapshots.get(tenant(), snapshot_id)))


@bp.delete("/v1/snapshots/<snapshot_id>")
def delete(snapshot_id: str) -> tuple[str, int]:
    parts().snapshots.delete(tenant(), snapshot_id)
    return "", 204


@bp.get("/v1/sessions/<session_id>/snapshots/<snapshot_id>")
def get_of_session(session_id: str, snapshot_id: str) -> Response:
    return jsonify(_as_json(parts().snapshots.get(tenant(), snapshot_id, named(session_id))))


@bp.delete("/v1/sessions/<session_id>/snapshots/<snapshot_id>")
def delete_of_session(session_id: str, snapshot_id: str) -> tuple[str, int]:
    parts().snapshots.delete(tenant(), snapshot_id, named(session_id))
    return "", 204


@bp.post("/v1/sessions/<session_id>/restore")
def restore(session_id: str) -> Response:
    asked = parse.body_of(workspace_models.Restore)
    return jsonify(session_as_json(parts().snapshots.restore(tenant(), named(session_id), asked.snapshot_id)))


@bp.post("/v1/sessions/<session_id>/undo")
def undo(session_id: str) -> Response:
    asked = parse.body_of(workspace_models.Undo)
    session, snapshot = parts().snapshots.undo(tenant(), named(session_id), asked.execution_id)
    undone = {"undone": snapshot.execution, "snapshot_id": snapshot.id}
    return jsonify({"session": session_as_json(session), **undone})


@bp.post("/v1/sessions/<session_id>/fork")
def fork(session_id: str) -> tuple[Response, int]:
    parse.body_of(session_models.NoFields)
    asked = parse.query_of(workspace_models.Fork, request.args.to_dict())
    g.fingerprint = f"{g.get('fingerprint', '')} {asked.count}"
    made = parts().snapshots.fork(tenant(), named(session_id), asked.count, parse.idempotency())
    acts.note(sessions=[one.id for one in made])
    return jsonify({"sessions": [{"status": "created", **session_as_json(one)} for one in made]}), 201


def _listed(found: list[Snapshot]) -> Response:
    return jsonify({"snapshots": [_as_json(one) for one in found]})


def _as_json(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "snapshot_id": snapshot.id,
        "session_id": snapshot.session,
        "name": snapshot.name,
        "kind": snapshot.kind,
        "execution_id": snapshot.execution,
        "size": snapshot.size,
        "created_at": timestamp(snapshot.created_at),
    }
