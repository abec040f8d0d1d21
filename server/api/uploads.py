"""/upload and /v1/uploads: files sent ahead of the sessions that they are for."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify, request

from server import file_errors
from server.api import acts, multipart, parse, session_models, transfers
from server.api.problems import Refusal
from server.api.wiring import parts, tenant
from server.times import timestamp
from server.upload_rows import Upload
from server.uploads import Arrival, TooLarge, TooSlow

bp = Blueprint("uploads", __name__)
_OVERHEAD = 1 << 20  # of a body, for what is between the files


@bp.post("/upload")
def upload() -> tuple[Response, int]:
    parse.query_of(session_models.NoFields, request.args.to_dict())
    between, limit = multipart.boundary(), parts().config.upload_limit
    if (request.content_length or 0) > limit + _OVERHEAD:
        raise file_errors.TooLarge(limit=limit)
    leave = parts().executions.enter_stream(tenant(), None)
    try:
        kept = _kept(multipart.files_in(transfers.body(limit + _OVERHEAD), between))
    except TooLarge as exc:
        raise file_errors.TooLarge(limit=limit) from exc
    except TooSlow as exc:
        raise Refusal("malformed_http", "The body came too slowly. Nothing was kept.") from exc
    finally:
        leave()
    acts.note(files=[one.id for one in kept])
    return jsonify({"files": [as_json(one) for one in kept]}), 201


def _kept(events: Any) -> list[Upload]:
    arrival = parts().uploads.receive(tenant(), request.content_length, parse.idempotency_key())
    try:
        with transfers.overseen(transfers.still_authorized()):
            _receive(arrival, events)
        return arrival.keep()
    finally:
        arrival.drop()


def _receive(arrival: Arrival, events: Any) -> None:
    for event in events:
        if isinstance(event, multipart.Begin):
            arrival.open(event.name, event.mime)
        elif isinstance(event, multipart.End):
            arrival.close()
        elif event:
            arrival.write(event)


@bp.get("/v1/uploads")
def list_uploads() -> Response:
    asked = parse.query_of(session_models.ListUploads, request.args.to_dict())
    found, following = parts().uploads.list(tenant(), asked.cursor or "", asked.limit)
    return jsonify({"files": [as_json(one) for one in found], "next_cursor": following})


@bp.get("/v1/uploads/<file_id>")
def get(file_id: str) -> Response:
    return jsonify(as_json(parts().uploads.find(tenant(), file_id)))


@bp.delete("/v1/uploads/<file_id>")
def delete(file_id: str) -> tuple[str, int]:
    parts().uploads.delete(tenant(), file_id)
    return "", 204


def as_json(upload: Upload) -> dict[str, Any]:
    return {
        "file_id": upload.id,
        "name": upload.name,
        "size": upload.size,
        "mime": upload.mime,
        "sha256": upload.sha256,
        "created_at": timestamp(upload.created_at),
        "expires_at": timestamp(upload.expires_at),
    }
