"""What a key must be good for, by endpoint. An endpoint that is not in the table is refused to everybody.

Scopes are about the API: who may execute in a sandbox reaches its files too.
"""

from __future__ import annotations

from flask import g

from server.api.wiring import key
from server.keys import OPERATOR
from server.records import ADMIN, Key
from server.tenant_errors import ScopeMissing

_READ, _WRITE, _EXECUTE, _FILES = "sessions:read", "sessions:write", "execute", "files"
_OPERATORS = "operator"  # `admin` in a key of no tenant; with one, `admin` reaches no further than that

ENDPOINTS = {
    "sessions.list_sessions": _READ,
    "sessions.get": _READ,
    "sessions.create_session": _WRITE,
    "sessions.create": _WRITE,
    "sessions.cleanup": _WRITE,
    "sessions.delete": _WRITE,
    "sessions.extend": _WRITE,
    "sessions.pause": _WRITE,
    "sessions.resume": _WRITE,
    "run.run": _EXECUTE,
    "executions.execute": _EXECUTE,
    "executions.execute_in": _EXECUTE,
    "executions.start": _EXECUTE,
    "executions.list_executions": _EXECUTE,
    "executions.get": _EXECUTE,
    "executions.delete": _EXECUTE,
    "executions.signal": _EXECUTE,
    "executions.send_input": _EXECUTE,
    "executions.resize": _EXECUTE,
    "executions.follow_events": _EXECUTE,
    "executions.log": _EXECUTE,
    "tickets.create_ticket": _EXECUTE,
    "terminal.open_terminal": _EXECUTE,
    "files.list_files": _FILES,
    "files.stat": _FILES,
    "files.delete_file": _FILES,
    "files.make_directory": _FILES,
    "files.move": _FILES,
    "files.copy": _FILES,
    "files.edit": _FILES,
    "files.create_url": _FILES,
    "contents.download": _FILES,
    "contents.upload": _FILES,
    "archives.download_archive": _FILES,
    "archives.upload_archive": _FILES,
    "searching.search": _FILES,
    "watching.watch": _FILES,
    "uploads.upload": _FILES,
    "uploads.list_uploads": _FILES,
    "uploads.get": _FILES,
    "uploads.delete": _FILES,
    "snapshots.list_of_session": _READ,
    "snapshots.list_all": _READ,
    "snapshots.get": _READ,
    "snapshots.get_of_session": _READ,
    "snapshots.take": _WRITE,
    "snapshots.delete": _WRITE,
    "snapshots.delete_of_session": _WRITE,
    "snapshots.restore": _WRITE,
    "snapshots.undo": _WRITE,
    "snapshots.fork": _WRITE,
    "workspaces.list_workspaces": _READ,
    "workspaces.get": _READ,
    "workspaces.datasets": _READ,
    "workspaces.delete": _WRITE,
    "workspaces.list_files": _FILES,
    "workspaces.stat": _FILES,
    "workspaces.download": _FILES,
    "workspaces.download_archive": _FILES,
    "limits.show": _READ,
    "metrics.of_session": _READ,
    "metrics.expose": _OPERATORS,
    "audit.list_audit": _READ,
    "audit.list_any": _OPERATORS,
    "admin_tenants.create": _OPERATORS,
    "admin_tenants.change": _OPERATORS,
    "admin_tenants.list_tenants": _OPERATORS,
    "admin_tenants.suspend": _OPERATORS,
    "admin_tenants.resume": _OPERATORS,
    "admin_tenants.delete": _OPERATORS,
    "admin_leaks.count_leaks": _OPERATORS,
    "admin_doctor.examine": _OPERATORS,
    "admin_tenants.get": ADMIN,
    "admin_tenants.usage": ADMIN,
    "admin_keys.create": ADMIN,
    "admin_keys.list_keys": ADMIN,
    "admin_keys.rotate": ADMIN,
    "admin_keys.revoke": ADMIN,
}


def check(endpoint: str | None, asking: Key) -> None:
    """Raises ScopeMissing. Where there is no endpoint there is nothing to protect: Flask says so."""
    if endpoint is None:
        return
    needed = ENDPOINTS.get(endpoint, "none")
    if needed == _OPERATORS:
        _need_operator(asking)
    elif needed not in asking.scopes:
        raise ScopeMissing(needed)


def need(scope: str) -> None:
    """For what only the request's body tells to be needed."""
    if scope not in key().scopes:
        raise ScopeMissing(scope)


def need_operator() -> None:
    _need_operator(key())


def asked_by_operator() -> bool:
    """Where no key is needed, too."""
    asking: Key | None = g.get("key")
    return asking is not None and _is_operators(asking)


def _is_operators(asking: Key) -> bool:
    return asking.tenant == OPERATOR and ADMIN in asking.scopes


def _need_operator(asking: Key) -> None:
    if not _is_operators(asking):
        raise ScopeMissing(ADMIN, " in a key of the operator's")
