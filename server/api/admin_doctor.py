"""/v1/admin/doctor: what `sandboxctl doctor` finds on the host, for the operator."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify

from server.api.wiring import parts

bp = Blueprint("admin_doctor", __name__)


@bp.get("/v1/admin/doctor")
def examine() -> Response:
    return jsonify(parts().doctor())
