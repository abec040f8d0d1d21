"""Every answer, counted when it is ready to be sent."""

from __future__ import annotations

from typing import Any

from flask import Response

from server.meters import Meters


def meter(meters: Meters, response: Response, fields: dict[str, Any]) -> None:
    """`fields` are those of the request's log line, and what has come of its body."""
    meters.answered(fields["route"], fields["method"], fields["status"])
    body, sent = response.response, 0
    if not isinstance(body, list):
        response.response = meters.metered(body)  # type: ignore[arg-type] # bytes, all of ours
    elif fields["method"] != "HEAD":
        sent = sum(map(len, body))
    meters.moved(fields.pop("received", 0), sent)
    if "code" in fields:
        meters.refused(fields["code"], fields.get("limit"))
