"""Which volume a session gets when its place is reserved: its own, or that of a workspace with a name.

All in the transaction that reserves: a workspace cannot have two live sessions, nor a snapshot go meanwhile.
"""

from __future__ import annotations

import sqlite3

from server.errors import Invalid
from server.workspace_errors import SnapshotNotFound, WorkspaceInUse

_HELD = "SELECT id, visit FROM sessions WHERE tenant = ? AND workspace = ? AND state != 'ended'"


def occupy(connection: sqlite3.Connection, tenant: str, values: dict[str, object], now: float) -> str | None:
    """The id of the volume that a session with these `values` shall have."""
    if values["source"] is not None:
        sql = "SELECT 1 FROM snapshots WHERE id = ? AND tenant = ? AND state = 'ready'"
        if connection.execute(sql, (values["source"], tenant)).fetchone() is None:
            raise SnapshotNotFound
    name, fresh = values["workspace"], values["volume"]
    if name is None:
        return fresh if isinstance(fresh, str) else None
    _make_way(connection, tenant, str(name), now)
    sql = "INSERT OR IGNORE INTO workspaces (tenant, name, volume, created_at) VALUES (?, ?, ?, ?)"
    new = connection.execute(sql, (tenant, name, fresh, now)).rowcount == 1
    if values["source"] is not None and not new:
        raise Invalid(
            "snapshot", "This workspace has files already. Restore the snapshot in its session instead."
        )
    sql = "SELECT volume FROM workspaces WHERE tenant = ? AND name = ?"
    return str(connection.execute(sql, (tenant, name)).fetchone()[0])


def _make_way(connection: sqlite3.Connection, tenant: str, name: str, now: float) -> None:
    """Who only looks at a workspace steps aside for who works in it."""
    held = connection.execute(_HELD, (tenant, name)).fetchone()
    if held is None:
        return
    if not held["visit"]:
        raise WorkspaceInUse(name)
    sql = "UPDATE sessions SET state = 'ended', cause = 'closed', ended_at = ? WHERE id = ?"
    connection.execute(sql, (now, held["id"]))


def moved_in(connection: sqlite3.Connection, session_id: str, now: float) -> None:
    """The session runs: from here on its workspace is one that was used."""
    sql = """UPDATE workspaces SET last_used_at = ?
             WHERE volume = (SELECT volume FROM sessions WHERE id = ? AND workspace IS NOT NULL)"""
    connection.execute(sql, (now, session_id))


def give_up(connection: sqlite3.Connection, session_id: str) -> None:
    """Opening failed: a workspace that was begun for it, and that nobody ever used, has never been."""
    sql = """DELETE FROM workspaces WHERE last_used_at IS NULL
             AND volume = (SELECT volume FROM sessions WHERE id = ?)"""
    connection.execute(sql, (session_id,))
