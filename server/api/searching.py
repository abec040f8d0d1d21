"""/v1/sessions/{id}/files/search: grep with a bounded answer in a bounded time."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify, request

from server.api import bulk_models as models
from server.api import parse
from server.api.file_names import path_as_json
from server.api.hangup import noticed
from server.api.transfers import still_authorized
from server.api.wiring import named, parts, tenant
from server.bulk_answers import Match
from server.guest_bulk_client import Sought

bp = Blueprint("searching", __name__)
_WORTH_WATCHING = 1.0


@bp.post("/v1/sessions/<session_id>/files/search")
def search(session_id: str) -> Response:
    asked = parse.body_of(models.SearchFiles)
    bulk, turns = parts().bulk, parts().turns
    wish = (asked.pattern, asked.regex, asked.ignore_case, asked.glob, asked.context, asked.limit)
    sought = Sought(asked.place, *wish)
    with noticed(request.environ.get("gunicorn.socket"), _WORTH_WATCHING, still_authorized()):
        rows, leave = parts().files.begin(
            tenant(), named(session_id), lambda _, guest: bulk.search(guest, sought)
        )
        leave()
    with turns.taken(tenant(), rows.size):
        found = rows.read()
        told = {
            "files_searched": found.searched,
            "files_skipped": found.skipped,
            "truncated": found.truncated,
        }
        return jsonify({"matches": [_as_json(match) for match in found.matches], **told})


def _as_json(match: Match) -> dict[str, object]:
    return {
        **path_as_json(match.path),
        "line": match.line,
        "column": match.column,
        "text": match.text,
        "before": match.before,
        "after": match.after,
    }
