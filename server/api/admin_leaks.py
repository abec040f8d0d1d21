"""What belongs to nobody on this host. At rest there is nothing, and that is what an operator watches."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify

from server.api.wiring import parts

bp = Blueprint("admin_leaks", __name__)

_NAMED = 100  # of a kind


@bp.get("/v1/admin/leaks")
def count_leaks() -> Response:
    found = parts().leaks()
    return jsonify(
        {
            "total": sum(len(names) for names in found.values()),
            "counts": {kind: len(names) for kind, names in found.items()},
            "found": {kind: names[:_NAMED] for kind, names in found.items() if names},
        }
    )
