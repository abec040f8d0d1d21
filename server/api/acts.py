"""Each request's line in the audit, written in one place when its outcome is known.

Recorded is every request that changes something, whatever came of it, and every one that was refused for who
asked or how often. What was asked is heard where bodies and queries are checked; nothing else is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

from flask import Flask, Response, current_app, g, request
from pydantic import BaseModel

from server.api.problems import DENIALS, FAILURES
from server.audit.chain import ANONYMOUS, INSTANCE, Act
from server.config import Config
from server.errors import StoreUnavailable

_CHANGING = {"POST", "PUT", "PATCH", "DELETE"}
READS = {"searching.search"}  # asks with a body, and changes nothing
_CHANGES = {"terminal.open_terminal"}  # the other way round
ACTIONS = {
    "sessions.create_session": "session.create",
    "sessions.create": "session.create",
    "sessions.cleanup": "session.close",
    "sessions.delete": "session.close",
    "sessions.extend": "session.extend",
    "sessions.pause": "session.pause",
    "sessions.resume": "session.resume",
    "run.run": "execution.run",
    "executions.execute": "execution.run",
    "executions.execute_in": "execution.run",
    "executions.start": "execution.run",
    "executions.delete": "execution.kill",
    "executions.signal": "execution.signal",
    "executions.send_input": "execution.input",
    "executions.resize": "execution.resize",
    "terminal.open_terminal": "terminal.open",
    "tickets.create_ticket": "ticket.create",
    "files.create_url": "file.url",
    "files.make_directory": "file.mkdir",
    "files.move": "file.move",
    "files.copy": "file.copy",
    "files.edit": "file.edit",
    "files.delete_file": "file.delete",
    "contents.upload": "file.write",
    "archives.upload_archive": "file.unpack",
    "snapshots.take": "snapshot.take",
    "snapshots.delete": "snapshot.delete",
    "snapshots.delete_of_session": "snapshot.delete",
    "snapshots.restore": "session.restore",
    "snapshots.undo": "session.undo",
    "snapshots.fork": "session.fork",
    "workspaces.delete": "workspace.delete",
    "workspaces.list_files": "workspace.visit",
    "workspaces.stat": "workspace.visit",
    "workspaces.download": "workspace.visit",
    "workspaces.download_archive": "workspace.visit",
    "uploads.upload": "upload.add",
    "uploads.delete": "upload.delete",
    "admin_tenants.create": "tenant.create",
    "admin_tenants.change": "tenant.set",
    "admin_tenants.suspend": "tenant.suspend",
    "admin_tenants.resume": "tenant.resume",
    "admin_tenants.delete": "tenant.delete",
    "admin_keys.create": "key.create",
    "admin_keys.rotate": "key.rotate",
    "admin_keys.revoke": "key.revoke",
}
# What is kept of a body or a query, by its field's name. Values of variables, inputs and contents never are.
_HEARD = (
    "image",
    "memory",
    "cpus",
    "disk",
    "timeout",
    "workspace",
    "snapshot",
    "ephemeral",
    "cold",
    "snapshot_id",
    "execution_id",
    "language",
    "shell",
    "background",
    "stream",
    "path",
    "path_base64",
    "source",
    "source_base64",
    "destination",
    "destination_base64",
    "recursive",
    "overwrite",
    "signal",
    "purpose",
    "name",
    "count",
    "tenant",
    "admin",
    "expires_in",
    "grace",
)


@dataclass
class Hearing:
    """What is known of the request so far."""

    commands: str  # SANDBOX_AUDIT_COMMANDS
    user: str | None = None
    session: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
    is_over: bool = False
    changes: bool = False  # although its route does not, as a rule


def begin(config: Config) -> None:
    g.hearing = Hearing(config.audit_commands, is_over="sandbox.rehearsal" in request.environ)


def heard(asked: BaseModel) -> None:
    """A body or a query, checked."""
    hearing: Hearing | None = g.get("hearing")
    if hearing is None:
        return
    said = asked.__dict__
    hearing.user = said.get("user_id") or hearing.user
    hearing.session = said.get("session_id") or hearing.session
    for name in _HEARD:
        if (value := said.get(name)) is not None and isinstance(value, (str, int, float)):
            hearing.details[name] = value
    if hearing.commands != "none" and (command := said.get("command")) is not None:
        hearing.details |= _command(command, hearing.commands)


def note(**details: Any) -> None:
    """What only became known by doing it."""
    g.hearing.details.update(details)


def change() -> None:
    """Something is opened for a request that only asks."""
    g.hearing.changes = True


def check() -> None:
    """Before anything is done: raises StoreUnavailable if it could not be recorded."""
    if _is_change():
        current_app.extensions["sandbox"].journal.check()


def end(response: Response) -> None:
    """The outcome is known."""
    parts = current_app.extensions["sandbox"]
    parts.journal.settle()
    hearing: Hearing = g.hearing
    code = g.get("code")
    if hearing.is_over or not (_is_change() or code in DENIALS):
        return
    hearing.is_over = True
    key, session = g.get("key"), _session(hearing)
    if key is not None and session is not None and hearing.user is None:
        with contextlib.suppress(StoreUnavailable):
            hearing.user = parts.sessions.user_of(key.tenant, session)
    act = Act(
        at=time.time(),
        action=_action(),
        outcome="done" if code is None else "failed" if code in FAILURES else "refused",
        actor="anonymous" if key is None else f"key:{key.id}",
        code=code,
        status=response.status_code,
        address=g.log["address"],
        session=session,
        user=hearing.user,
        request_id=g.request_id,
        details={"method": request.method, "route": _route(), **_named(), **hearing.details},
    )
    parts.journal.record(ANONYMOUS if key is None else key.tenant or INSTANCE, act)


def begun(status: int) -> None:
    """What takes long is recorded when it begins."""
    end(Response(status=status))


def register(app: Flask) -> None:
    @app.teardown_request
    def interrupted(exc: BaseException | None) -> None:
        """Past everything that answers: the worker shall end, or the caller had gone."""
        if exc is not None and "hearing" in g and "log" in g:
            g.code = g.get("code") or "interrupted"
            end(Response())


def _command(command: str | list[str], how: str) -> dict[str, Any]:
    """The hash in either case: a long text is cut in its record, and the hash is of all of it."""
    text = command if isinstance(command, str) else json.dumps(command)
    whole = text.encode("utf-8", "surrogatepass")
    kept = {"command_sha256": hashlib.sha256(whole).hexdigest()}
    return kept | {"command": text, "command_bytes": len(whole)} if how == "text" else kept


def _is_change() -> bool:
    if request.endpoint in _CHANGES or g.hearing.changes:
        return True
    return request.method in _CHANGING and request.endpoint not in READS


def _action() -> str:
    """Routes that have no name here go by their own."""
    endpoint = request.endpoint or "none"
    return ACTIONS.get(endpoint, endpoint)


def _route() -> str:
    return str(request.url_rule) if request.url_rule is not None else request.path[:256]


def _named() -> dict[str, str]:
    """What the path names besides the session."""
    return {
        name: str(value)[:256] for name, value in (request.view_args or {}).items() if name != "session_id"
    }


def _session(hearing: Hearing) -> str | None:
    """Ours have 32 digits; what was sent in its place is cut."""
    named = (request.view_args or {}).get("session_id") or hearing.session or g.log.get("session")
    return None if named is None else str(named)[:64]
