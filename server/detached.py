"""Executions that outlive the call that started them, counted against their tenant.

The guest alone knows when one of them ends. A row here says that it may still run; whoever learns of its end
removes the row, and when a tenant is at its limit its guests are asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from server.store import Store

_COUNT = "SELECT count(*) FROM detached WHERE tenant = ? AND until > ?"
_OF_USER = """ AND session IN
              (SELECT id FROM sessions WHERE state != 'ended' AND tenant = ? AND user_id = ?)"""


@dataclass(frozen=True)
class One:
    """An execution that may run until then; `most` is for how many seconds it is charged at most."""

    tenant: str
    session: str
    execution: str
    until: float
    most: float = 0.0


class NoRoom(Exception):
    """As many as there may be; of a user, or of the tenant as a whole."""

    def __init__(self, user: str | None) -> None:
        super().__init__()
        self.user = user


class Detached:
    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, one: One, now: float, room: Mapping[str | None, int] | None = None) -> bool:
        """Whether it is new. One transaction, however many ask: NoRoom if the tenant, or that user of it,
        has as many as that already."""
        with self._store.writing() as connection:
            known = "SELECT 1 FROM detached WHERE session = ? AND execution = ?"
            if connection.execute(known, (one.session, one.execution)).fetchone():
                return False
            for user, most in (room or {}).items():
                if connection.execute(*_counting(one.tenant, user, now)).fetchone()[0] >= most:
                    raise NoRoom(user)
            row = (one.session, one.execution, one.tenant, one.until, now, one.most)
            connection.execute("INSERT INTO detached VALUES (?, ?, ?, ?, ?, ?)", row)
            return True

    def remove(self, session: str, execution: str, seconds: float | None = None) -> float | None:
        """Until when it might have run; None if it was not here. It is charged for `seconds`, or till now."""
        name = (session, execution)
        if not self._store.quickly("SELECT 1 FROM detached WHERE session = ? AND execution = ?", name):
            return None
        if seconds is not None:
            sql = "UPDATE detached SET most = min(most, ?) WHERE session = ? AND execution = ?"
            self._store.quickly(sql, (max(0.0, seconds), *name))
        sql = "DELETE FROM detached WHERE session = ? AND execution = ? RETURNING until"
        rows = self._store.quickly(sql, name).fetchall()
        return float(rows[0][0]) if rows else None

    def rename(self, session: str, execution: str, to: str) -> None:
        sql = "UPDATE OR REPLACE detached SET execution = ? WHERE session = ? AND execution = ?"
        self._store.quickly(sql, (to, session, execution))

    def count(self, tenant: str, user: str | None, now: float) -> int:
        found: int = self._store.quickly(*_counting(tenant, user, now)).fetchone()[0]
        return found

    def in_session(self, session: str) -> set[str]:
        """The ids of its executions that are counted."""
        rows = self._store.quickly("SELECT execution FROM detached WHERE session = ?", (session,))
        return {str(row[0]) for row in rows}

    def of(self, tenant: str) -> dict[str, set[str]]:
        """Executions by session."""
        found: dict[str, set[str]] = {}
        rows = self._store.quickly("SELECT session, execution FROM detached WHERE tenant = ?", (tenant,))
        for session, execution in rows.fetchall():
            found.setdefault(session, set()).add(execution)
        return found


def _counting(tenant: str, user: str | None, now: float) -> tuple[str, tuple[object, ...]]:
    return (_COUNT, (tenant, now)) if user is None else (_COUNT + _OF_USER, (tenant, now, tenant, user))
