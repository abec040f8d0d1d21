"""Idempotency keys of creates that were answered with a session that stood already.

A session that a create has made holds the key itself. These are remembered apart, for a day, so that the same
key gives the same session again, and another wish under it is a conflict.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from server.errors import IdempotencyConflict
from server.records import Session, session_of

_KEPT_SECONDS = 86400.0
_MOST = 1000  # of a tenant; the oldest go first


def given_before(connection: sqlite3.Connection, wanted: Session) -> Session | None:
    """The session that this key was answered with. It shows the key as its own, but no fingerprint."""
    sql = """SELECT sessions.*, create_keys.fingerprint AS asked FROM create_keys
             JOIN sessions ON sessions.id = create_keys.session
             WHERE create_keys.tenant = ? AND create_keys.key = ? AND create_keys.until > ?"""
    row = connection.execute(sql, (wanted.tenant, wanted.idempotency_key, wanted.created_at)).fetchone()
    if row is None:
        return None
    if row["asked"] != wanted.fingerprint:
        raise IdempotencyConflict
    values = {name: row[name] for name in row.keys() if name != "asked"}  # noqa: SIM118 - a Row's
    return replace(session_of(values), idempotency_key=wanted.idempotency_key, fingerprint=None)


def note_given(connection: sqlite3.Connection, wanted: Session, session_id: str) -> None:
    if wanted.idempotency_key is None:
        return
    until = wanted.created_at + _KEPT_SECONDS
    values = (wanted.tenant, wanted.idempotency_key, wanted.fingerprint, session_id, until)
    connection.execute("INSERT OR REPLACE INTO create_keys VALUES (?, ?, ?, ?, ?)", values)
    sql = f"""DELETE FROM create_keys WHERE tenant = ? AND until < (
                  SELECT until FROM create_keys WHERE tenant = ?
                  ORDER BY until DESC LIMIT 1 OFFSET {_MOST - 1})"""
    connection.execute(sql, (wanted.tenant, wanted.tenant))
