"""Ephemeral sessions as the store knows them: each is for one command."""

from __future__ import annotations

from server.names import Idempotency
from server.records import HOT, SPENT, WAITING, session_of
from server.store import Session, Store

_ENDED = "state = 'ended', cause = 'spent', ended_at = :now"
_KEYLESS = "idempotency_key = NULL, fingerprint = NULL"


def spend(store: Store, session_id: str, now: float) -> bool:
    """Whether this call is the one that may run the session's only command."""
    sql = f"""UPDATE sessions SET ephemeral = {SPENT}, last_used_at = :now
              WHERE id = :id AND state = 'running' AND ephemeral = {WAITING}"""
    return _changed(store, sql, id=session_id, now=now)


def give_up(store: Store, session_id: str, now: float) -> bool:
    """End one that nobody has spent, and free its key. Whoever is about to spend it then finds it ended."""
    sql = f"""UPDATE sessions SET {_ENDED}, {_KEYLESS}
              WHERE id = :id AND state = 'running' AND ephemeral = {WAITING}"""
    return _changed(store, sql, id=session_id, now=now)


def end_unused(store: Store, session: Session, ran: bool, now: float) -> bool:
    """End one that was spent, if nobody has used it since `session` was read. If nothing ran, its key is
    free."""
    freed = "" if ran else f", {_KEYLESS}"
    sql = f"""UPDATE sessions SET {_ENDED}{freed}
              WHERE id = :id AND state = 'running' AND last_used_at = :used"""
    return _changed(store, sql, id=session.id, used=session.last_used_at, now=now)


def free_key(store: Store, session_id: str) -> None:
    _changed(store, f"UPDATE sessions SET {_KEYLESS} WHERE id = :id", id=session_id)


def free_unspent(store: Store, tenant: str, idempotency: Idempotency) -> None:
    """The key of one that has ended before anybody had spent it."""
    sql = f"""UPDATE sessions SET {_KEYLESS} WHERE tenant = :tenant AND idempotency_key = :key
              AND fingerprint = :fingerprint AND state = 'ended' AND ephemeral = {WAITING}"""
    _changed(store, sql, tenant=tenant, **vars(idempotency))


def is_key_known(store: Store, tenant: str, key: str) -> bool:
    sql = "SELECT 1 FROM sessions WHERE tenant = ? AND idempotency_key = ?"
    return store.quickly(sql, (tenant, key)).fetchone() is not None


def spent(store: Store, before: float) -> list[Session]:
    """Those whose command was begun before then, and which can be asked for what has become of it."""
    sql = f"""SELECT * FROM sessions WHERE state = 'running' AND ephemeral = {SPENT}
              AND sandbox IS NOT NULL AND phase = '{HOT}' AND last_used_at <= ?"""
    return [session_of(row) for row in store.quickly(sql, (before,)).fetchall()]


def _changed(store: Store, sql: str, **values: object) -> bool:
    with store.writing() as connection:
        return connection.execute(sql, values).rowcount == 1
