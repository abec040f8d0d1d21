"""Tenants in the store. The row of one that is deleted stays: its name and number are nobody else's."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import NamedTuple

from server.records import Tenant
from server.store import Store
from server.tenant_errors import TenantExists, TenantNotFound

_DELETED = "tenant IN (SELECT id FROM tenants WHERE deleted_at IS NOT NULL)"


class Left(NamedTuple):
    """What a tenant that is deleted had on the host."""

    sandboxes: list[str]
    volumes: list[str]


class TenantRows:
    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, name: str, now: float, limits: str = "{}") -> None:
        with self._store.writing() as connection:
            sql = "INSERT OR IGNORE INTO tenants (id, created_at, limits) VALUES (?, ?, ?)"
            if connection.execute(sql, (name, now, limits)).rowcount != 1:
                raise TenantExists

    def change_limits(self, name: str, changed: Callable[[str], str]) -> None:
        """One transaction: of two changes at once neither is lost."""
        with self._store.writing() as connection:
            found = "SELECT limits FROM tenants WHERE id = ? AND deleted_at IS NULL"
            row = connection.execute(found, (name,)).fetchone()
            if row is None:
                raise TenantNotFound
            connection.execute("UPDATE tenants SET limits = ? WHERE id = ?", (changed(row[0]), name))

    def get(self, name: str) -> Tenant:
        sql = "SELECT * FROM tenants WHERE id = ? AND deleted_at IS NULL"
        row = self._store.quickly(sql, (name,)).fetchone()
        if row is None:
            raise TenantNotFound
        return Tenant(**dict(row))

    def suspend(self, name: str, now: float | None) -> None:
        """Since now, or (None) no longer. What is suspended already is so since then."""
        with self._store.writing() as connection:
            since = "NULL" if now is None else "coalesce(suspended_at, :now)"
            sql = f"UPDATE tenants SET suspended_at = {since} WHERE id = :name AND deleted_at IS NULL"
            if connection.execute(sql, {"name": name, "now": now}).rowcount != 1:
                raise TenantNotFound

    def delete(self, name: str, now: float) -> Left:
        """With all it has, in one transaction. What nobody owns any more."""
        with self._store.writing() as connection:
            sql = "UPDATE tenants SET deleted_at = ? WHERE id = ? AND deleted_at IS NULL"
            if connection.execute(sql, (now, name)).rowcount != 1:
                raise TenantNotFound
            return _clear(connection, now)

    def clear_deleted(self, now: float) -> None:
        """What a request that was on its way has begun for a tenant after its end."""
        with self._store.writing() as connection:
            _clear(connection, now)

    def list(self, after: str, limit: int) -> list[Tenant]:
        """By name."""
        sql = "SELECT * FROM tenants WHERE deleted_at IS NULL AND id > ? ORDER BY id LIMIT ?"
        return [Tenant(**dict(row)) for row in self._store.quickly(sql, (after, limit))]


def _clear(connection: sqlite3.Connection, now: float) -> Left:
    """Everything of tenants that are deleted. What is not removed by whoever asked goes with the sweeps."""
    live = f"SELECT sandbox FROM sessions WHERE {_DELETED} AND state != 'ended' AND sandbox IS NOT NULL"
    kept = f"""SELECT volume FROM workspaces WHERE {_DELETED} UNION SELECT id FROM snapshots WHERE {_DELETED}
               UNION SELECT volume FROM sessions
                     WHERE {_DELETED} AND state != 'ended' AND sandbox IS NULL AND volume IS NOT NULL"""
    left = Left(*([str(row[0]) for row in connection.execute(sql)] for sql in (live, kept)))
    for sql in (
        f"UPDATE keys SET revoked_at = :now WHERE {_DELETED} AND revoked_at IS NULL",
        f"""INSERT INTO session_events (tenant, session, user_id, event, cause, at)
            SELECT tenant, id, user_id, 'close', 'tenant_deleted', :now FROM sessions
            WHERE {_DELETED} AND state = 'running'""",
        f"""UPDATE sessions SET state = 'ended', cause = 'closed', ended_at = :now
            WHERE {_DELETED} AND state != 'ended'""",
        f"DELETE FROM workspaces WHERE {_DELETED}",
        f"DELETE FROM snapshots WHERE {_DELETED}",
        f"DELETE FROM upload_calls WHERE {_DELETED}",
        f"UPDATE uploads SET expires_at = :now WHERE {_DELETED} AND expires_at > :now",
    ):
        connection.execute(sql, {"now": now})
    return left
