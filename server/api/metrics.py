"""/metrics for Prometheus, and /v1/sessions/{id}/metrics: what one session uses."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify, request
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from server.api import parse
from server.api.metric_models import GetMetrics
from server.api.wiring import named, parts, tenant
from server.session_metrics import Sample
from server.times import timestamp

bp = Blueprint("metrics", __name__)


@bp.get("/metrics")
def expose() -> Response:
    return Response(parts().exposition.text(), content_type=CONTENT_TYPE_PLAIN_0_0_4)


@bp.get("/v1/sessions/<session_id>/metrics")
def of_session(session_id: str) -> Response:
    asked = parse.query_of(GetMetrics, request.args.to_dict())
    measured = parts().session_metrics.look(tenant(), named(session_id), asked.seconds)
    session = measured.session
    return jsonify(
        {
            "session_id": session.id,
            "interval": measured.interval,
            "memory_limit": session.memory,
            "cpus_limit": session.cpus,
            "disk_limit": session.disk,
            "now": _as_json(measured.now),
            "samples": [_as_json(sample) for sample in measured.samples],
        }
    )


def _as_json(sample: Sample) -> dict[str, Any]:
    return {**vars(sample), "at": timestamp(sample.at)}
