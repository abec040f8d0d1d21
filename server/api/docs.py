"""/openapi.json, and /docs, the same for a person: no script, no CDN."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flask import Blueprint, Response, current_app, jsonify, render_template_string

from server.api.describe import description
from server.api.problems import STATUSES, TITLES

bp = Blueprint("docs", __name__)

# Read with the module: a web worker may not be allowed to read our files later.
_PAGE = (Path(__file__).parent / "docs.html").read_text()
_STYLE = (Path(__file__).parent / "docs.css").read_text()


@bp.get("/")
def index() -> Response:
    return jsonify({"name": "sandbox-server", "docs": "/docs", "openapi": "/openapi.json"})


@bp.get("/openapi.json")
def openapi() -> Response:
    return Response(_once(_as_json), mimetype="application/json")


@bp.get("/docs")
def page() -> Response:
    return Response(_once(_as_page), mimetype="text/html")


@bp.get("/docs.css")
def style() -> Response:
    return Response(_STYLE, mimetype="text/css")


def _once(write: Callable[[], str]) -> bytes:
    """Strangers may ask without end, and writing takes a tenth of a second in which nobody else is heard."""
    written: dict[Callable[[], str], bytes] = current_app.extensions.setdefault("docs", {})
    if write not in written:
        written[write] = write().encode()
    return written[write]


def _as_json() -> str:
    return current_app.json.dumps(description(current_app))


def _as_page() -> str:
    return render_template_string(_PAGE, api=description(current_app), codes=STATUSES, titles=TITLES)
