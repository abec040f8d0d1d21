"""/v1/workspaces, which outlive their sessions, and /v1/datasets, which are the operator's."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, g, jsonify, request

from server.api import acts, archives, contents, files, parse, workspace_models
from server.api.wiring import parts, tenant
from server.times import timestamp
from server.volume_rows import Workspace

bp = Blueprint("workspaces", __name__)


@bp.get("/v1/workspaces")
def list_workspaces() -> Response:
    asked = parse.query_of(workspace_models.ListWorkspaces, request.args.to_dict())
    found, following = parts().workspaces.list(tenant(), asked.cursor or "", asked.limit)
    return jsonify({"workspaces": [_as_json(one, used) for one, used in found], "next_cursor": following})


@bp.get("/v1/workspaces/<path:name>")
def get(name: str) -> Response:
    return jsonify(_as_json(*parts().workspaces.get(tenant(), name)))


@bp.delete("/v1/workspaces/<path:name>")
def delete(name: str) -> tuple[str, int]:
    parts().workspaces.delete(tenant(), name)
    return "", 204


@bp.get("/v1/workspaces/<path:name>/files")
def list_files(name: str) -> Response:
    return files.list_files(_visited(name))


@bp.get("/v1/workspaces/<path:name>/files/stat")
def stat(name: str) -> Response:
    return files.stat(_visited(name))


@bp.get("/v1/workspaces/<path:name>/files/content")
def download(name: str) -> Response:
    return contents.download(_visited(name))


@bp.get("/v1/workspaces/<path:name>/files/archive")
def download_archive(name: str) -> Response:
    return archives.download_archive(_visited(name))


@bp.get("/v1/datasets")
def datasets() -> Response:
    return jsonify({"datasets": parts().workspaces.datasets()})


def _visited(name: str) -> str:
    """The session through which it is looked at: its files are a sandbox's to read, never the host's."""
    session_id, opened = parts().workspaces.visit(tenant(), name)
    g.log["session"] = session_id
    if opened:
        acts.change()
    return session_id


def _as_json(workspace: Workspace, used: int | None) -> dict[str, Any]:
    used_at = workspace.last_used_at
    return {
        "name": workspace.name,
        "size": used,
        "created_at": timestamp(workspace.created_at),
        "last_used_at": None if used_at is None else timestamp(used_at),
        "session_id": workspace.session,
    }
