"""Which sessions sleep, and how deep: hot, paused or cold, beside the state `running` that they all have.

Only the keeper writes this. It writes `paused` before it freezes a sandbox and `hot` after it has thawed it,
so that whoever reads `hot` may speak to the guest, wherever the keeper dies. A cold one is `waking` while it
gets a sandbox again.
"""

from __future__ import annotations

import sqlite3

from server.records import COLD, HOT, PAUSED, WAKING, session_of
from server.store import Admit, Session, Store

_RUNNING = "SELECT * FROM sessions WHERE state = 'running'"


class SleepRows:
    def __init__(self, store: Store) -> None:
        self._store = store

    def idle(self, before: float) -> list[Session]:
        """Hot ones that nobody has used, or woken, since then."""
        sql = f"""{_RUNNING} AND phase = '{HOT}' AND sandbox IS NOT NULL
                  AND max(last_used_at, coalesce(phase_since, 0)) <= ?"""
        return self._found(sql, before)

    def long_idle(self, before: float, asleep_before: float) -> list[Session]:
        """Paused ones in which nothing waits to go on: unused since the one, asleep since the other."""
        sql = f"{_RUNNING} AND phase = '{PAUSED}' AND NOT held AND last_used_at <= ? AND phase_since <= ?"
        return self._found(sql, before, asleep_before)

    def kept_busy(self, now: float) -> list[Session]:
        """Hot ones whose lease is over, and which live because something may still run in them."""
        sql = f"{_RUNNING} AND phase = '{HOT}' AND last_used_at + lease <= ? AND busy_until > ?"
        return self._found(sql, now, now)

    def paused(self) -> list[Session]:
        return self._found(f"{_RUNNING} AND phase = '{PAUSED}'")

    def waking(self) -> list[Session]:
        return self._found(f"{_RUNNING} AND phase = '{WAKING}'")

    def fall_asleep(self, session: Session, reason: str, rested_at: float, now: float) -> bool:
        """False if it was used, or put to sleep, since `session` was read."""
        return self._pause(session, reason, rested_at, now, "AND last_used_at = :used")

    def put_to_sleep(self, session: Session, rested_at: float | None, now: float) -> bool:
        """The same because it was asked for, whoever uses it; None if something runs in it."""
        return self._pause(session, "asked", rested_at, now)

    def _pause(
        self, session: Session, reason: str, rested_at: float | None, now: float, unless: str = ""
    ) -> bool:
        with self._store.writing() as connection:
            sql = f"""UPDATE sessions SET phase = '{PAUSED}', phase_since = :now, phase_reason = :reason,
                      held = :held WHERE id = :id AND state = 'running' AND phase = '{HOT}'
                      AND sandbox = :sandbox {unless}"""
            values = {"now": now, "reason": reason, "held": rested_at is None, "used": session.last_used_at}
            values |= {"id": session.id, "sandbox": session.sandbox}
            if connection.execute(sql, values).rowcount != 1:
                return False
            if rested_at is not None:
                _let_go(connection, session.id, rested_at)
            return True

    def wake(self, session: Session, reason: str, now: float) -> bool:
        sql = f"""UPDATE sessions SET phase = '{HOT}', phase_since = ?, phase_reason = ?, held = 0
                  WHERE id = ? AND state = 'running' AND phase = '{PAUSED}'"""
        return self._changed(sql, now, reason, session.id)

    def cool(self, session: Session, reason: str, now: float) -> bool:
        """It has no sandbox any more, and nothing runs in it."""
        with self._store.writing() as connection:
            sql = f"""UPDATE sessions SET phase = '{COLD}', phase_since = :now, phase_reason = :reason,
                      cold_at = :now, sandbox = NULL, address = NULL, held = 0, busy_until = 0
                      WHERE id = :id AND state = 'running' AND phase = '{PAUSED}' AND sandbox = :sandbox"""
            values = {"now": now, "reason": reason, "id": session.id, "sandbox": session.sandbox}
            if connection.execute(sql, values).rowcount != 1:
                return False
            connection.execute("DELETE FROM detached WHERE session = ?", (session.id,))
            return True

    def begin_waking(self, session: Session, admit: Admit) -> bool:
        """It is to have a sandbox again: from here on its size counts. `admit` raises if there is no room."""
        with self._store.writing() as connection:
            admit(connection, session)
            sql = f"""UPDATE sessions SET phase = '{WAKING}'
                      WHERE id = ? AND state = 'running' AND phase = '{COLD}'"""
            return connection.execute(sql, (session.id,)).rowcount == 1

    def sleep_on(self, session_id: str | None = None) -> None:
        """It could not be woken. None: nobody is being woken, at the keeper's start."""
        sql = f"UPDATE sessions SET phase = '{COLD}' WHERE phase = '{WAKING}' AND ? IN (id, '')"
        self._changed(sql, session_id or "")

    def warm_up(self, session: Session, sandbox: str, address: str, reason: str, now: float) -> bool:
        """It has a sandbox again."""
        sql = f"""UPDATE sessions
                  SET phase = '{HOT}', phase_since = ?, phase_reason = ?, sandbox = ?, address = ?
                  WHERE id = ? AND state = 'running' AND phase = '{WAKING}'"""
        return self._changed(sql, now, reason, sandbox, address, session.id)

    def _found(self, sql: str, *values: float) -> list[Session]:
        return [session_of(row) for row in self._store.quickly(sql, values).fetchall()]

    def _changed(self, sql: str, *values: object) -> bool:
        with self._store.writing() as connection:
            return connection.execute(sql, values).rowcount == 1


def _let_go(connection: sqlite3.Connection, session_id: str, rested_at: float) -> None:
    """What had begun by then has ended by then: it does not count while its session sleeps and cannot be
    asked."""
    which = "WHERE session = :session AND started_at <= :rested_at"
    values = {"session": session_id, "rested_at": rested_at}
    connection.execute(f"UPDATE detached SET most = min(most, :rested_at - started_at) {which}", values)
    connection.execute(f"DELETE FROM detached {which}", values)
