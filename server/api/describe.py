"""/openapi.json, made from the models and the routes, and /docs, the same for a person. No script, no CDN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flask import Blueprint, Flask, Response, current_app, jsonify, render_template_string
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import server
from server.api import models
from server.api.auth import OPEN_ENDPOINTS
from server.api.problems import STATUSES, TITLES

bp = Blueprint("describe", __name__)

# Read with the module: a web worker may not be allowed to read our files later.
_PAGE = (Path(__file__).parent / "docs.html").read_text()
_STYLE = (Path(__file__).parent / "docs.css").read_text()

# What a route takes and gives; the rest (paths, methods, parameters) is read off the application.
BODIES: dict[str, type[BaseModel]] = {
    "sessions.create_session": models.CreateSession,
    "sessions.create": models.CreateSession,
    "sessions.execute": models.Execute,
    "sessions.execute_in": models.RunCommand,
    "sessions.cleanup": models.Cleanup,
    "sessions.extend": models.Extend,
}
ANSWERS: dict[str, tuple[int, type[BaseModel] | None, str]] = {
    "sessions.create_session": (200, models.SessionAnswer, "Open a session, or get the user's live one"),
    "sessions.execute": (200, models.Result, "Run a command in a session"),
    "sessions.cleanup": (200, models.Closed, "Close a session"),
    "sessions.create": (201, models.SessionAnswer, "Open a session, or (200) get the user's live one"),
    "sessions.list_sessions": (
        200,
        models.SessionList,
        "The tenant's live sessions; metadata.NAME=VALUE filters",
    ),
    "sessions.get": (200, models.SessionAnswer, "One session"),
    "sessions.delete": (204, None, "Close a session"),
    "sessions.extend": (200, models.SessionAnswer, "Start the lease anew, with another length if given"),
    "sessions.execute_in": (200, models.Result, "Run a command in this session"),
    "describe.index": (200, None, "Where to read on"),
    "status.healthz": (200, None, "The process answers"),
    "status.readyz": (200, None, "Sessions can be opened (503 with reasons if not)"),
    "status.version": (200, None, "Versions"),
    "describe.openapi": (200, None, "This description"),
    "describe.docs": (200, None, "This description as a page"),
}
RUNS_OR_CREATES = {"sessions.create_session", "sessions.create", "sessions.execute", "sessions.execute_in"}
_REF = "#/components/schemas/{model}"


@bp.get("/")
def index() -> Response:
    return jsonify({"name": "sandbox-server", "docs": "/docs", "openapi": "/openapi.json"})


@bp.get("/openapi.json")
def openapi() -> Response:
    return jsonify(description(current_app))


@bp.get("/docs")
def docs() -> str:
    return render_template_string(_PAGE, api=description(current_app), codes=STATUSES, titles=TITLES)


@bp.get("/docs.css")
def style() -> Response:
    return Response(_STYLE, mimetype="text/css")


def description(app: Flask) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    order = list(ANSWERS)
    described = [rule for rule in app.url_map.iter_rules() if rule.endpoint in ANSWERS]
    for rule in sorted(described, key=lambda rule: order.index(rule.endpoint)):
        path = rule.rule.replace("<", "{").replace(">", "}")
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
            paths.setdefault(path, {})[method.lower()] = _operation(rule.endpoint, rule.arguments)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sandbox-server",
            "version": server.__version__,
            "description": server.__doc__ or "",
        },
        "security": [{"bearer": []}, {"header": []}],
        "paths": paths,
        "components": {"schemas": _schemas(), "securitySchemes": _SECURITY},
    }


_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def _schemas() -> dict[str, Any]:
    used: set[type[BaseModel]] = {models.Problem, *BODIES.values()}
    used |= {model for _, model, _ in ANSWERS.values() if model is not None}
    ordered = sorted(used, key=lambda model: model.__name__)
    _, told = models_json_schema([(model, "validation") for model in ordered], ref_template=_REF)
    schemas: dict[str, Any] = told["$defs"]
    return schemas


def _operation(endpoint: str, arguments: set[str]) -> dict[str, Any]:
    status, model, summary = ANSWERS[endpoint]
    operation: dict[str, Any] = {
        "operationId": endpoint.replace(".", "_"),
        "summary": summary,
        "responses": _responses(endpoint, status, model),
    }
    if parameters := _parameters(endpoint, arguments):
        operation["parameters"] = parameters
    if endpoint in BODIES:
        required = any(field.is_required() for field in BODIES[endpoint].model_fields.values())
        operation["requestBody"] = {"required": required, "content": _json(BODIES[endpoint])}
    if endpoint in OPEN_ENDPOINTS:
        operation["security"] = []
    return operation


def _responses(endpoint: str, status: int, model: type[BaseModel] | None) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "Done"}
    if model is not None:
        answer["content"] = _json(model)
    elif status == 200:
        kind = "text/html" if endpoint == "describe.docs" else "application/json"
        answer["content"] = {kind: {}}
    responses = {str(status): answer}
    if endpoint == "sessions.create":
        responses["200"] = answer
    if endpoint == "status.readyz":
        responses["503"] = answer
    problem = {"$ref": _REF.format(model="Problem")}
    responses["default"] = {
        "description": "A problem (RFC 9457); `code` says which",
        "content": {"application/problem+json": {"schema": problem}},
    }
    return responses


def _parameters(endpoint: str, arguments: set[str]) -> list[dict[str, Any]]:
    found = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in sorted(arguments)
    ]
    if endpoint in RUNS_OR_CREATES:
        found.append(
            {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "maxLength": 200}}
        )
    if endpoint == "sessions.list_sessions":
        properties = models.ListSessions.model_json_schema()["properties"]
        found += [{"name": name, "in": "query", "schema": schema} for name, schema in properties.items()]
    return found


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}
