"""The API described for programs (OpenAPI), made from the models and the routes."""

from __future__ import annotations

import re
from typing import Any

from flask import Flask
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import server
from server.api import (
    admin_described,
    answers,
    audit_models,
    bulk_models,
    file_models,
    metric_models,
    models,
    session_models,
    sleep_described,
    workspace_models,
)
from server.api.auth import OPEN_ENDPOINTS

# What a route takes and gives; the rest (paths, methods, parameters) is read off the application.
BODIES: dict[str, type[BaseModel]] = {
    "sessions.create_session": session_models.CreateSession,
    "sessions.create": session_models.CreateSession,
    "sessions.cleanup": session_models.Cleanup,
    "executions.execute": models.Execute,
    "executions.execute_in": models.RunCommand,
    "executions.start": models.RunCommand,
    "executions.signal": models.Signal,
    "executions.send_input": models.Input,
    "executions.resize": models.Screen,
    "files.make_directory": file_models.MakeDirectory,
    "files.move": file_models.MoveFile,
    "files.copy": file_models.CopyFile,
    "files.edit": file_models.EditFile,
    "searching.search": bulk_models.SearchFiles,
    "files.create_url": file_models.NewFileUrl,
    "tickets.create_ticket": models.NewTicket,
    "snapshots.take": workspace_models.TakeSnapshot,
    "snapshots.restore": workspace_models.Restore,
    "snapshots.undo": workspace_models.Undo,
    **sleep_described.BODIES,
    **admin_described.BODIES,
}
QUERIES: dict[str, type[BaseModel]] = {
    **dict.fromkeys(("sessions.create_session", "sessions.create"), session_models.Wait),
    "limits.show": session_models.ShowLimits,
    "sessions.list_sessions": session_models.ListSessions,
    "metrics.of_session": metric_models.GetMetrics,
    "executions.get": models.GetExecution,
    "executions.follow_events": models.Follow,
    "executions.log": models.GetLog,
    "terminal.open_terminal": models.OpenTerminal,
    "snapshots.fork": workspace_models.Fork,
    "workspaces.list_workspaces": workspace_models.ListWorkspaces,
    "workspaces.list_files": file_models.ListFiles,
    "workspaces.stat": file_models.StatFile,
    "workspaces.download": file_models.GetContent,
    "workspaces.download_archive": bulk_models.GetArchive,
    "files.list_files": file_models.ListFiles,
    "files.stat": file_models.StatFile,
    "files.delete_file": file_models.DeleteFile,
    "contents.download": file_models.GetContent,
    "contents.upload": file_models.PutContent,
    "uploads.list_uploads": session_models.ListUploads,
    "archives.download_archive": bulk_models.GetArchive,
    "archives.upload_archive": bulk_models.PutArchive,
    "watching.watch": bulk_models.Watch,
    **audit_models.QUERIES,
    **admin_described.QUERIES,
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
    **sleep_described.ANSWERS,
    "metrics.of_session": (200, metric_models.SessionMetricsAnswer, "What it uses, now and lately"),
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
    "snapshots.take": (201, answers.SnapshotAnswer, "Take a snapshot of the workspace"),
    "snapshots.list_of_session": (200, answers.SnapshotList, "Snapshots and checkpoints of a session"),
    "snapshots.get_of_session": (200, answers.SnapshotAnswer, "One snapshot of a session"),
    "snapshots.delete_of_session": (204, None, "Delete a snapshot of a session"),
    "snapshots.list_all": (200, answers.SnapshotList, "All snapshots and checkpoints of the tenant"),
    "snapshots.get": (200, answers.SnapshotAnswer, "One snapshot"),
    "snapshots.delete": (204, None, "Delete a snapshot"),
    "snapshots.restore": (200, answers.SessionAnswer, "Go back to a snapshot; what runs is ended"),
    "snapshots.undo": (200, answers.Undone, "Go back to before the last execution, or a named one"),
    "snapshots.fork": (201, answers.Forked, "New sessions with copies of the workspace and the main shell"),
    "workspaces.list_workspaces": (200, answers.WorkspaceList, "Workspaces that outlive their sessions"),
    "workspaces.get": (200, answers.WorkspaceAnswer, "One workspace"),
    "workspaces.delete": (204, None, "Delete a workspace that no live session has"),
    "workspaces.list_files": (200, answers.FileList, "What is in a workspace, without a session"),
    "workspaces.stat": (200, answers.FileEntry, "One file of a workspace"),
    "workspaces.download": (200, None, "What is in a file of a workspace"),
    "workspaces.download_archive": (200, None, "A directory of a workspace as an archive"),
    "workspaces.datasets": (200, answers.DatasetList, "Datasets that a session may have below /data"),
    "files.list_files": (200, answers.FileList, "A directory, page by page, sorted by path"),
    "files.stat": (200, answers.FileEntry, "One file, directory or link"),
    "files.delete_file": (204, None, "Delete it"),
    "contents.download": (
        200,
        None,
        "What is in a file; Range (one), If-Range, If-None-Match hold",
    ),
    "contents.upload": (
        201,
        answers.FileEntry,
        "Write a file as a whole; If-Match and If-None-Match: * hold; 200 if it was replaced",
    ),
    "files.make_directory": (201, answers.FileEntry, "Make a directory; 200 if it is there"),
    "files.move": (200, answers.FileEntry, "Move or rename"),
    "files.copy": (200, answers.FileEntry, "Copy"),
    "files.edit": (200, answers.Edited, "Replace a text in a file"),
    "searching.search": (200, answers.SearchAnswer, "Lines of files in which a text or pattern is found"),
    "archives.download_archive": (200, None, "A directory, or a file, as an archive"),
    "archives.upload_archive": (200, answers.Unpacked, "Unpack an archive below a directory"),
    "watching.watch": (200, None, "What happens in a directory: Server-Sent Events, or NDJSON by Accept"),
    "files.create_url": (201, answers.FileUrl, "A URL for one download or upload without a key"),
    "tickets.create_ticket": (201, answers.TicketAnswer, "A ticket for a URL, instead of a key"),
    "terminal.open_terminal": (101, None, "A terminal over a WebSocket"),
    "uploads.upload": (201, answers.Uploaded, "Send files ahead, as multipart/form-data"),
    "uploads.list_uploads": (200, answers.UploadList, "The tenant's uploads"),
    "uploads.get": (200, answers.UploadAnswer, "One upload"),
    "uploads.delete": (204, None, "Remove an upload"),
    **audit_models.ANSWERS,
    "limits.show": (200, answers.LimitsAnswer, "Where the tenant stands: quotas and rates"),
    **admin_described.ANSWERS,
    "docs.index": (200, None, "Where to read on"),
    "status.healthz": (200, None, "The process answers"),
    "status.readyz": (200, None, "Sessions can be opened (503 with reasons if not)"),
    "status.version": (200, None, "Versions"),
    "docs.openapi": (200, None, "This description"),
    "docs.page": (200, None, "This description as a page"),
}
# Besides the answer above: the same endpoint may also give this.
ALSO: dict[str, dict[str, Any]] = {
    "sessions.create": {"200": answers.SessionAnswer},
    "snapshots.take": {"200": answers.SnapshotAnswer},
    "executions.execute": {"202": answers.ExecutionAnswer},
    "executions.execute_in": {"202": answers.ExecutionAnswer},
    "executions.follow_events": {"204": None},
    "files.make_directory": {"200": answers.FileEntry},
    "contents.upload": {"200": answers.FileEntry},
    "contents.download": {"206": None, "304": None},
}
KINDS = {
    "docs.page": ("text/html",),
    "metrics.expose": ("text/plain",),
    "executions.follow_events": ("text/event-stream", "application/x-ndjson"),
    "executions.log": ("application/octet-stream",),
    "contents.download": ("application/octet-stream",),
    "archives.download_archive": ("application/x-tar", "application/gzip", "application/zip"),
    "workspaces.download": ("application/octet-stream",),
    "workspaces.download_archive": ("application/x-tar", "application/gzip", "application/zip"),
    "watching.watch": ("text/event-stream", "application/x-ndjson"),
}
RAW_BODIES = {"contents.upload", "archives.upload_archive"}
STREAMING = {"executions.execute", "executions.execute_in", "executions.start", "run.run"}
CREATES = {"sessions.create_session", "sessions.create", "snapshots.take", "snapshots.fork", "uploads.upload"}
RUNS_OR_CREATES = {*CREATES, *STREAMING}
_FILES = {"type": "object", "additionalProperties": {"type": "string", "contentMediaType": "*/*"}}
_REF = "#/components/schemas/{model}"


def description(app: Flask) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    order = list(ANSWERS)
    described = [rule for rule in app.url_map.iter_rules() if rule.endpoint in ANSWERS]
    for rule in sorted(described, key=lambda rule: order.index(rule.endpoint)):
        path = re.sub(r"<(?:path:)?(\w+)>", r"{\1}", rule.rule)
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
    if endpoint in RAW_BODIES:
        operation["requestBody"] = {"required": True, "content": {"application/octet-stream": {}}}
    if endpoint == "uploads.upload":
        operation["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": _FILES}}}
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
    if model is audit_models.AuditPage:
        answer["content"] |= {"application/x-ndjson": {}}
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
