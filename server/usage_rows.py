"""What was used on which day, in the store: by tenant (`user_id` is empty) and by user.

`mapped_*` is what the web workers have counted in memory, written down now and then; the other columns are
what was charged here. Both together are the day's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from server.store import Store

_KEEP_DAYS = 90
_RUNNING = """SELECT coalesce(sum(max(0.0, min(:now - started_at, most))), 0.0) FROM detached
              WHERE tenant = :tenant"""
_OF_USER = (
    "session IN (SELECT id FROM sessions WHERE state != 'ended' AND tenant = :tenant AND user_id = :user)"
)


@dataclass(frozen=True)
class Used:
    """Seconds that commands ran, bytes that came in and went out."""

    seconds: float = 0.0
    received: int = 0
    sent: int = 0

    def __add__(self, other: Used) -> Used:
        return Used(self.seconds + other.seconds, self.received + other.received, self.sent + other.sent)


@dataclass(frozen=True)
class Day:
    tenant: str
    user: str
    day: int
    used: Used


class UsageRows:
    def __init__(self, store: Store) -> None:
        self._store = store

    def begin(self, tenant: str, user: str, day: int) -> None:
        """Something is about to be counted: who starts later must find out for whom."""
        sql = "INSERT OR IGNORE INTO usage (tenant, user_id, day) VALUES (?, ?, ?)"
        self._store.quickly(sql, (tenant, user, day))

    def add(self, tenant: str, user: str, day: int, used: Used) -> None:
        sql = """INSERT INTO usage (tenant, user_id, day, seconds, received, sent) VALUES (?, ?, ?, ?, ?, ?)
                 ON CONFLICT DO UPDATE SET seconds = seconds + excluded.seconds,
                 received = received + excluded.received, sent = sent + excluded.sent"""
        self._store.quickly(sql, (tenant, user, day, used.seconds, used.received, used.sent))

    def charged(self, tenant: str, user: str, day: int) -> Used:
        """Here, without what is counted in memory."""
        sql = "SELECT seconds, received, sent FROM usage WHERE tenant = ? AND user_id = ? AND day = ?"
        row = self._store.quickly(sql, (tenant, user, day)).fetchone()
        return Used() if row is None else Used(*row)

    def going_on(self, tenant: str, user: str, now: float) -> float:
        """Seconds that executions have run which nobody waits for, and which are not known to have ended."""
        sql = f"{_RUNNING} AND {_OF_USER}" if user else _RUNNING
        values = {"tenant": tenant, "user": user, "now": now}
        return float(self._store.quickly(sql, values).fetchone()[0])

    def names(self, since: int) -> list[tuple[str, str, int]]:
        sql = "SELECT tenant, user_id, day FROM usage WHERE day >= ?"
        return [(row[0], row[1], row[2]) for row in self._store.quickly(sql, (since,))]

    def write_down(self, counted: Iterable[Day], today: int) -> None:
        """What is counted in memory, as it stands; days that are long over go."""
        sql = """UPDATE usage SET mapped_seconds = ?, mapped_received = ?, mapped_sent = ?
                 WHERE tenant = ? AND user_id = ? AND day = ?"""
        with self._store.writing() as connection:
            for one in counted:
                values = (one.used.seconds, one.used.received, one.used.sent, one.tenant, one.user, one.day)
                connection.execute(sql, values)
            connection.execute("DELETE FROM usage WHERE day < ?", (today - _KEEP_DAYS,))

    def history(self, tenant: str | None, since: int, users: bool = False) -> list[Day]:
        """By day; of all tenants if none is named."""
        sql = """SELECT tenant, user_id, day, seconds + mapped_seconds, received + mapped_received,
                 sent + mapped_sent FROM usage WHERE (:tenant IS NULL OR tenant = :tenant) AND day >= :since
                 AND (:users OR user_id = '') ORDER BY day, tenant, user_id"""
        rows = self._store.quickly(sql, {"tenant": tenant, "since": since, "users": users})
        return [Day(row[0], row[1], row[2], Used(*row[3:])) for row in rows]
