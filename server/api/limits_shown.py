"""/v1/limits: where a tenant stands."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify, request

from server.api import parse, session_models
from server.api.rates import CLASSES
from server.api.wiring import parts, tenant

bp = Blueprint("limits", __name__)


@bp.get("/v1/limits")
def show() -> Response:
    asked = parse.query_of(session_models.ShowLimits, request.args.to_dict())
    standing = parts().limits.standing
    answer: dict[str, Any] = {"limits": standing.of(tenant()), "rates": _rates()}
    if asked.user_id is not None:
        answer["user"] = {"user_id": asked.user_id, "limits": standing.of(tenant(), asked.user_id)}
    answer["day_ends_in"] = parts().limits.usage.seconds_until_tomorrow()
    return jsonify(answer)


def _rates() -> dict[str, Any]:
    found = (parts().limits.rates.look(name, tenant()) for name in CLASSES)
    return {
        one.name: {"used": one.used, "allowed": one.limit, "window": one.window, "reset": one.reset}
        for one in found
    }
