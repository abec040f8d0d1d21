"""Keys in the store. `Store.key` looks one up for a request; what changes them is here."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from server.records import TENANT_SCOPES, Key, key_of_row
from server.store import Store
from server.tenant_errors import KeyNotFound, TenantNotFound, TooManyKeys

_MOST = 1000  # of a tenant's; those that ended count until they are forgotten
_LISTED = """SELECT keys.*, tenants.suspended_at IS NOT NULL AS suspended
             FROM keys LEFT JOIN tenants ON tenants.id = keys.tenant"""
_OVER = "min(coalesce(revoked_at, 9e15), coalesce(expires_at, 9e15))"  # when it was over, or will be


class KeyRows:
    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, key: Key) -> None:
        with self._store.writing() as connection:
            _add(connection, key)

    def rotate(self, old: str, new: Key, until: float, now: float) -> Key:
        """`new` takes the place of `old`, which is good until then, or no longer if that is now."""
        with self._store.writing() as connection:
            row = connection.execute(f"{_LISTED} WHERE keys.id = ?", (old,)).fetchone()
            replaced = None if row is None else key_of_row(row)
            if replaced is None or replaced.state(now) != "active" or replaced.replaced_by is not None:
                raise KeyNotFound
            made = replace(
                new,
                tenant=replaced.tenant,
                name=replaced.name,
                scopes=replaced.scopes,
                expires_at=replaced.expires_at,
            )
            _add(connection, made)
            sql = """UPDATE keys SET replaced_by = :new,
                     expires_at = min(coalesce(expires_at, :until), :until),
                     revoked_at = CASE WHEN :until <= :now THEN :now END WHERE id = :old"""
            connection.execute(sql, {"new": made.id, "old": old, "until": until, "now": now})
        return made

    def revoke(self, key_id: str, now: float) -> bool:
        with self._store.writing() as connection:
            sql = "UPDATE keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL"
            return connection.execute(sql, (now, key_id)).rowcount == 1

    def list(self, tenant: str | None, after: tuple[float, str], limit: int) -> list[Key]:
        """Oldest first; of one tenant, or (None) of all and the operator's own."""
        sql = f"""{_LISTED} WHERE (:tenant IS NULL OR keys.tenant = :tenant)
                  AND (keys.created_at, keys.id) > (:at, :id)
                  ORDER BY keys.created_at, keys.id LIMIT :limit"""
        values = {"tenant": tenant, "at": after[0], "id": after[1], "limit": limit}
        return [key_of_row(row) for row in self._store.quickly(sql, values)]

    def drop_stale(self, over_before: float) -> None:
        with self._store.writing() as connection:
            connection.execute(f"DELETE FROM keys WHERE {_OVER} < ?", (over_before,))


def _add(connection: sqlite3.Connection, key: Key) -> None:
    """In the transaction that looks: a tenant that is being deleted gets no new key."""
    sql = "SELECT 1 FROM tenants WHERE id = ? AND deleted_at IS NULL"
    if key.tenant and connection.execute(sql, (key.tenant,)).fetchone() is None:
        raise TenantNotFound
    sql = "SELECT count(*) FROM keys WHERE tenant = ?"
    if connection.execute(sql, (key.tenant,)).fetchone()[0] >= _MOST:
        raise TooManyKeys(_MOST)
    scopes = None if key.scopes == TENANT_SCOPES else " ".join(sorted(key.scopes))
    connection.execute(
        """INSERT INTO keys (id, tenant, name, hash, created_at, revoked_at, salt, scopes, expires_at)
           VALUES (:id, :tenant, :name, :hash, :created_at, :revoked_at, :salt, :scopes, :expires_at)""",
        {**vars(key), "scopes": scopes},
    )
