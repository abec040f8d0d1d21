"""/openapi.json, made from the models and the routes, and /docs, the same for a person. No script, no CDN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flask import Blueprint, Flask, Response, current_app, jsonify, render_template_string
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import server
from server.api import answers, models
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
    "sessions.cleanup": models.Cleanup,
    "sessions.extend": models.Extend,
    "executions.execute": models.Execute,
    "executions.execute_in": models.RunCommand,
    "executions.start": models.RunCommand,
    "executions.signal": models.Signal,
    "executions.send_input": models.Input,
    "executions.resize": models.Screen,
    "tickets.create_ticket": models.NewTicket,
}
QUERIES: dict[str, type[BaseModel]] = {
    "sessions.list_sessions": models.ListSessions,
    "executions.get": models.GetExecution,
    "executions.follow_events": models.Follow,
    "executions.log": models.GetLog,
    "terminal.open_terminal": models.OpenTerminal,
}
Answers = dict[str, tuple[int, type[BaseModel] | None, str]]
ANSWERS: Answers = {
    "sessions.create_session": (200, answers.SessionAnswer, "Open a session, or get the user's live one"),
    "executions.execute": (200, answers.Result, "Run a command in a session"),
    "sessions.cleanup": (200, answers.Closed, "Close a session"),
    "sessions.create": (201, answers.SessionAnswer, "Open a session, or (200) get the user's live one"),
    "sessions.list_sessions": (
        200,
        answers.SessionList,
        "The tenant's live sessions; metadata.NAME=VALUE filters",
    ),
    "sessions.get": (200, answers.SessionAnswer, "One session"),
    "sessions.delete": (204, None, "Close a session"),
    "sessions.extend": (200, answers.SessionAnswer, "Start the lease anew, with another length if given"),
    "executions.execute_in": (200, answers.Result, "Run a command in this session"),
    "executions.start": (201, answers.ExecutionAnswer, "Start an execution"),
    "executions.list_executions": (200, answers.ExecutionList, "Those that run, and the last that ended"),
    "executions.get": (200, answers.ExecutionAnswer, "One execution, with its result when it has ended"),
    "executions.delete": (204, None, "Kill it with all its children"),
    "executions.signal": (204, None, "Send it a signal"),
    "executions.send_input": (204, None, "Write to its stdin, or close it"),
    "executions.resize": (204, None, "Give its terminal another size"),
    "executions.follow_events": (200, None, "Follow it: Server-Sent Events, or NDJSON by Accept"),
    "executions.log": (200, None, "Download all that is kept of what it printed"),
    "tickets.create_ticket": (201, answers.TicketAnswer, "A ticket for a URL, instead of a key"),
    "terminal.open_terminal": (101, None, "A terminal over a WebSocket"),
    "describe.index": (200, None, "Where to read on"),
    "status.healthz": (200, None, "The process answers"),
    "status.readyz": (200, None, "Sessions can be opened (503 with reasons if not)"),
    "status.version": (200, None, "Versions"),
    "describe.openapi": (200, None, "This description"),
    "describe.docs": (200, None, "This description as a page"),
}
# Besides the answer above: the same endpoint may also give this.
ALSO: dict[str, dict[str, Any]] = {
    "sessions.create": {"200": answers.SessionAnswer},
    "executions.execute": {"202": answers.ExecutionAnswer},
    "executions.execute_in": {"202": answers.ExecutionAnswer},
    "executions.follow_events": {"204": None},
}
KINDS = {
    "describe.docs": ("text/html",),
    "executions.follow_events": ("text/event-stream", "application/x-ndjson"),
    "executions.log": ("application/octet-stream",),
}
STREAMING = {"executions.execute", "executions.execute_in", "executions.start"}
RUNS_OR_CREATES = {"sessions.create_session", "sessions.create", *STREAMING}
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
    used: set[type[BaseModel]] = {answers.Problem, *BODIES.values()}
    used |= {model for _, model, _ in ANSWERS.values() if model is not None}
    used |= {model for also in ALSO.values() for model in also.values() if model is not None}
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
    responses = {str(status): _response(endpoint, model, has_body=status == 200)}
    for other, also in ALSO.get(endpoint, {}).items():
        responses[other] = _response(endpoint, also, has_body=False)
    if endpoint == "status.readyz":
        responses["503"] = responses["200"]
    problem = {"$ref": _REF.format(model="Problem")}
    responses["default"] = {
        "description": "A problem (RFC 9457); `code` says which",
        "content": {"application/problem+json": {"schema": problem}},
    }
    return responses


def _response(endpoint: str, model: type[BaseModel] | None, has_body: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "Done"}
    if model is not None:
        answer["content"] = _json(model)
    elif has_body:
        answer["content"] = {kind: {} for kind in KINDS.get(endpoint, ("application/json",))}
    if endpoint in STREAMING and model is not None:
        answer["content"] |= {kind: {} for kind in KINDS["executions.follow_events"]}
    return answer


def _parameters(endpoint: str, arguments: set[str]) -> list[dict[str, Any]]:
    found = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in sorted(arguments)
    ]
    if endpoint in RUNS_OR_CREATES:
        found.append(
            {"name": "Idempotency-Key", "in": "header", "schema": {"type": "string", "maxLength": 200}}
        )
    if endpoint == "executions.follow_events":
        found.append({"name": "Last-Event-ID", "in": "header", "schema": {"type": "integer"}})
    if endpoint in QUERIES:
        properties = QUERIES[endpoint].model_json_schema()["properties"]
        found += [{"name": name, "in": "query", "schema": schema} for name, schema in properties.items()]
    return found


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}
