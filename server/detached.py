"""Executions that outlive the call that started them, counted against their tenant.

The guest alone knows when one of them ends. A row here says that it may still run; whoever learns of its end
removes the row, and when a tenant is at its limit its guests are asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.store import Store

_COUNT = "SELECT count(*) FROM detached WHERE tenant = ? AND until > ?"


@dataclass(frozen=True)
class One:
    """An execution that may run until then."""

    tenant: str
    session: str
    execution: str
    until: float


class Detached:
    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, one: One, now: float, most: int) -> bool | None:
        """Whether it is new; None if the tenant has `most` already. One transaction, however many ask."""
        with self._store.writing() as connection:
            known = "SELECT 1 FROM detached WHERE session = ? AND execution = ?"
            if connection.execute(known, (one.session, one.execution)).fetchone():
                return False
            if connection.execute(_COUNT, (one.tenant, now)).fetchone()[0] >= most:
                return None
            row = (one.session, one.execution, one.tenant, one.until)
            connection.execute("INSERT INTO detached VALUES (?, ?, ?, ?)", row)
            return True

    def remove(self, session: str, execution: str) -> float | None:
        """Until when it might have run; None if it was not here."""
        sql = "DELETE FROM detached WHERE session = ? AND execution = ? RETURNING until"
        rows = self._store.quickly(sql, (session, execution)).fetchall()
        return float(rows[0][0]) if rows else None

    def rename(self, session: str, execution: str, to: str) -> None:
        sql = "UPDATE OR REPLACE detached SET execution = ? WHERE session = ? AND execution = ?"
        self._store.quickly(sql, (to, session, execution))

    def count(self, tenant: str, now: float) -> int:
        found: int = self._store.quickly(_COUNT, (tenant, now)).fetchone()[0]
        return found

    def of(self, tenant: str) -> dict[str, set[str]]:
        """Executions by session."""
        found: dict[str, set[str]] = {}
        rows = self._store.quickly("SELECT session, execution FROM detached WHERE tenant = ?", (tenant,))
        for session, execution in rows.fetchall():
            found.setdefault(session, set()).add(execution)
        return found
