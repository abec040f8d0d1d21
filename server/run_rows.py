"""Answers of POST /run, for who asks again with the same Idempotency-Key: the sandbox that gave one is gone.

The newest of a tenant are kept, for a day; of others only that they were given.
"""

from __future__ import annotations

from collections.abc import Callable

from server.errors import IdempotencyConflict, ResultForgotten
from server.names import Idempotency
from server.store import Store

_KEPT_SECONDS = 86400.0
_MOST_BYTES = 4 << 20  # of a tenant
_MOST = 1000


class RunRows:
    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock

    def answer(self, tenant: str, idempotency: Idempotency) -> str | None:
        """What was answered; None if nothing was. Raises if that was another request, or is forgotten."""
        sql = "SELECT fingerprint, answer FROM run_answers WHERE tenant = ? AND key = ? AND until > ?"
        row = self._store.quickly(sql, (tenant, idempotency.key, self._clock())).fetchone()
        if row is None:
            return None
        if row["fingerprint"] != idempotency.fingerprint:
            raise IdempotencyConflict
        if row["answer"] is None:
            raise ResultForgotten
        return str(row["answer"])

    def keep(self, tenant: str, idempotency: Idempotency, answer: str) -> None:
        """Written down when this returns. Kept again, it stays as it was."""
        now = self._clock()
        kept = answer if len(answer) <= _MOST_BYTES else None
        values = (tenant, idempotency.key, idempotency.fingerprint, kept, now + _KEPT_SECONDS)
        with self._store.writing() as connection:
            connection.execute("DELETE FROM run_answers WHERE tenant = ? AND until <= ?", (tenant, now))
            connection.execute("INSERT OR IGNORE INTO run_answers VALUES (?, ?, ?, ?, ?)", values)
            newest = """SELECT key, row_number() OVER ages AS place, sum(length(answer)) OVER ages AS size
                        FROM run_answers WHERE tenant = ? WINDOW ages AS (ORDER BY until DESC, key)"""
            connection.execute(
                f"""UPDATE run_answers SET answer = NULL WHERE tenant = ? AND answer IS NOT NULL
                    AND key IN (SELECT key FROM ({newest}) WHERE size > {_MOST_BYTES})""",
                (tenant, tenant),
            )
            connection.execute(
                f"""DELETE FROM run_answers WHERE tenant = ?
                    AND key IN (SELECT key FROM ({newest}) WHERE place > {_MOST})""",
                (tenant, tenant),
            )
