"""Rows of the store that speak for nothing: what they stand for is over, and nobody will remove them."""

from __future__ import annotations

from collections.abc import Iterable

from server.store import Store
from server.volume_rows import MAKING_SECONDS

_ENDED = "session NOT IN (SELECT id FROM sessions WHERE state != 'ended')"

_STALE = f"""
SELECT 'snapshot/' || id FROM snapshots WHERE (state = 'making' OR kind = 'fork') AND created_at < :making
UNION ALL
SELECT 'checkpoint/' || id FROM snapshots WHERE kind != 'snapshot' AND {_ENDED}
UNION ALL
SELECT 'execution/' || session || '/' || execution FROM detached WHERE {_ENDED}
UNION ALL
SELECT 'workspace/' || tenant || '/' || name FROM workspaces WHERE last_used_at IS NULL
AND volume NOT IN (SELECT volume FROM sessions WHERE state != 'ended' AND volume IS NOT NULL)
"""


class LeakRows:
    def __init__(self, store: Store) -> None:
        self._store = store

    def opening(self) -> dict[str, float]:
        """Sessions whose place is reserved and which have no sandbox yet, and since when."""
        rows = self._store.quickly("SELECT id, created_at FROM sessions WHERE state = 'opening'")
        return {str(row["id"]): float(row["created_at"]) for row in rows}

    def drop_openings(self, sessions: Iterable[str]) -> None:
        """As if they had never been asked for. The workspaces that were begun for them go with the sweep."""
        with self._store.writing() as connection:
            sql = "DELETE FROM sessions WHERE id = ? AND state = 'opening'"
            connection.executemany(sql, [(session,) for session in sessions])

    def drop_survivors(self) -> None:
        """Rows of sessions that have ended which were written a moment too late to end with them."""
        survivors = [
            f"FROM detached WHERE {_ENDED}",
            f"FROM snapshots WHERE kind != 'snapshot' AND {_ENDED}",
        ]
        for which in survivors:
            if self._store.quickly(f"SELECT 1 {which} LIMIT 1"):
                with self._store.writing() as connection:
                    connection.execute(f"DELETE {which}")

    def stale(self, now: float) -> set[str]:
        """What they are, and their ids."""
        return {str(row[0]) for row in self._store.quickly(_STALE, {"making": now - MAKING_SECONDS})}
