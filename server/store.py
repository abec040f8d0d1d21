"""The store: tenants, keys and sessions in SQLite (WAL), shared by the web workers and the keeper.

What is acknowledged to a caller is written with a full sync; renewing a lease is not worth a disk flush and
goes through a second connection that leaves the flush to the next one. Nothing here yields to another
greenlet inside a transaction, so one connection serves a whole process under a plain lock.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from server.errors import IdempotencyConflict, StoreUnavailable, TooManySessions
from server.schema import SCHEMA

_BUSY_SECONDS = 10.0
_MOST_SEEN = 4096

_log = logging.getLogger("sandbox.store")


@dataclass(frozen=True)
class Key:
    id: str
    tenant: str
    name: str
    hash: str
    created_at: float
    revoked_at: float | None


@dataclass(frozen=True)
class Session:
    """A tenant's lease on one sandbox, as the store knows it."""

    id: str
    tenant: str
    user_id: str | None
    state: str
    image: str
    memory: int
    cpus: float
    lease: float
    metadata: dict[str, str]
    created_at: float
    last_used_at: float
    busy_until: float
    must_end_at: float
    sandbox: str | None = None
    address: str | None = None
    cause: str | None = None
    ended_at: float | None = None
    idempotency_key: str | None = None
    fingerprint: str | None = None

    @property
    def expires_at(self) -> float:
        return min(self.last_used_at + self.lease, self.must_end_at)

    def is_due(self, now: float) -> bool:
        """A running command keeps its session alive; nothing keeps it beyond its hard end."""
        return now >= self.must_end_at or now >= max(self.last_used_at + self.lease, self.busy_until)


_COLUMNS = tuple(column.name for column in fields(Session))
_DUE = "(must_end_at <= :now OR max(last_used_at + lease, busy_until) <= :now)"


@dataclass
class Seen:
    """Rows as they were when the database was at this version."""

    version: int = -1
    keys: dict[str, Key] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)


class Store:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._connections: dict[str, sqlite3.Connection] = {}
        self._seen = Seen()

    def _connection(self, synchronous: str) -> sqlite3.Connection:
        """Opened at first use: gunicorn forks between the wiring and the first request."""
        connection = self._connections.get(synchronous)
        if connection is None:
            connection = sqlite3.connect(
                self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={synchronous}")
            connection.executescript(SCHEMA)
            self._connections[synchronous] = connection
        return connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is on disk when this returns."""
        with self._lock, _translated():
            connection = self._connection("FULL")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def quickly(self, sql: str, values: dict[str, Any] | tuple[Any, ...] = ()) -> sqlite3.Cursor:
        with self._lock, _translated():
            return self._connection("NORMAL").execute(sql, values)

    def _unchanged(self) -> Seen:
        """What was read before, as long as nobody has written since: SQLite counts others' transactions.

        Our own on the same connection are not counted, so whoever makes them drops what they change.
        """
        version: int = self.quickly("PRAGMA data_version").fetchone()[0]
        if version != self._seen.version or len(self._seen.sessions) > _MOST_SEEN:
            self._seen = Seen(version)
        return self._seen

    def close(self) -> None:
        with self._lock:
            while self._connections:
                self._connections.popitem()[1].close()

    def check_writable(self, now: float) -> None:
        """Raises StoreUnavailable when a write would fail."""
        with self.writing() as connection:
            connection.execute("DELETE FROM written")
            connection.execute("INSERT INTO written VALUES (?)", (now,))

    # Tenants and keys.

    def add_tenant(self, tenant: str, now: float) -> None:
        with self.writing() as connection:
            connection.execute("INSERT OR IGNORE INTO tenants VALUES (?, ?)", (tenant, now))

    def add_key(self, key: Key) -> None:
        with self.writing() as connection:
            connection.execute(
                "INSERT INTO keys VALUES (:id, :tenant, :name, :hash, :created_at, :revoked_at)", vars(key)
            )

    def key(self, key_id: str) -> Key | None:
        keys = self._unchanged().keys
        if key_id not in keys:
            row = self.quickly("SELECT * FROM keys WHERE id = ?", (key_id,)).fetchone()
            if row is None:
                return None
            keys[key_id] = Key(**dict(row))
        return keys[key_id]

    def is_revoked(self, key_id: str) -> bool:
        key = self.key(key_id)
        return key is None or key.revoked_at is not None

    def revoke_key(self, key_id: str, now: float) -> bool:
        with self.writing() as connection:
            sql = "UPDATE keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL"
            return connection.execute(sql, (now, key_id)).rowcount == 1

    # Sessions.

    def reserve(self, wanted: Session, most: int) -> tuple[Session, bool]:
        """The session that `wanted` becomes, or the one that stands in its place; and whether it is new.

        One transaction: a quota cannot be exceeded, nor a user get two sessions, however many ask at once.
        """
        with self.writing() as connection:
            standing = self._standing(connection, wanted)
            if standing is not None:
                return standing, False
            live = "SELECT count(*) FROM sessions WHERE tenant = ? AND state != 'ended'"
            if connection.execute(live, (wanted.tenant,)).fetchone()[0] >= most:
                raise TooManySessions(most)
            values = {**vars(wanted), "metadata": json.dumps(wanted.metadata)}
            names = ", ".join(_COLUMNS)
            marks = ", ".join(f":{name}" for name in _COLUMNS)
            connection.execute(f"INSERT INTO sessions ({names}) VALUES ({marks})", values)
        return wanted, True

    def _standing(self, connection: sqlite3.Connection, wanted: Session) -> Session | None:
        if wanted.idempotency_key is not None:
            sql = "SELECT * FROM sessions WHERE tenant = ? AND idempotency_key = ?"
            row = connection.execute(sql, (wanted.tenant, wanted.idempotency_key)).fetchone()
            if row is not None:
                if row["fingerprint"] != wanted.fingerprint:
                    raise IdempotencyConflict
                return _session(row)
        sql = "SELECT * FROM sessions WHERE tenant = ? AND user_id = ? AND state != 'ended'"
        row = connection.execute(sql, (wanted.tenant, wanted.user_id)).fetchone()
        return None if row is None else _session(row)

    def attach(self, session_id: str, sandbox: str, address: str, now: float) -> bool:
        """The sandbox is ready: the session runs. False if nobody waits for it any more."""
        with self.writing() as connection:
            sql = """UPDATE sessions SET state = 'running', sandbox = ?, address = ?, last_used_at = ?
                     WHERE id = ? AND state = 'opening'"""
            return connection.execute(sql, (sandbox, address, now, session_id)).rowcount == 1

    def release(self, session_id: str) -> None:
        """Opening failed: as if it had never been asked for."""
        with self.writing() as connection:
            connection.execute("DELETE FROM sessions WHERE id = ? AND state = 'opening'", (session_id,))

    def session(self, session_id: str) -> Session | None:
        sessions = self._unchanged().sessions
        if session_id not in sessions:
            row = self.quickly("SELECT * FROM sessions WHERE id = ?", (session_id,)).fetchone()
            if row is None:
                return None
            sessions[session_id] = _session(row)
        return sessions[session_id]

    def use(self, session_id: str, now: float, busy_until: float) -> None:
        sql = """UPDATE sessions SET last_used_at = ?, busy_until = max(busy_until, ?)
                 WHERE id = ? AND state = 'running'"""
        self.quickly(sql, (now, busy_until, session_id))
        self._seen.sessions.pop(session_id, None)

    def rest(self, session_id: str, now: float, busy_until: float) -> None:
        """A command has ended: the lease starts anew, and what this command alone kept alive is let go."""
        sql = """UPDATE sessions SET last_used_at = max(last_used_at, ?),
                 busy_until = CASE WHEN busy_until = ? THEN 0 ELSE busy_until END
                 WHERE id = ? AND state = 'running'"""
        self.quickly(sql, (now, busy_until, session_id))
        self._seen.sessions.pop(session_id, None)

    def extend(self, session_id: str, lease: float, now: float) -> None:
        with self.writing() as connection:
            sql = "UPDATE sessions SET lease = ?, last_used_at = ? WHERE id = ? AND state = 'running'"
            connection.execute(sql, (lease, now, session_id))

    def end(self, session_id: str, cause: str, now: float) -> bool:
        """Whether this call is the one that ended it. The row stays as a tombstone."""
        with self.writing() as connection:
            sql = """UPDATE sessions SET state = 'ended', cause = ?, ended_at = ?
                     WHERE id = ? AND state != 'ended'"""
            return connection.execute(sql, (cause, now, session_id)).rowcount == 1

    def list_running(
        self, tenant: str, user_id: str | None, metadata: dict[str, str], after: str, limit: int
    ) -> list[Session]:
        """Oldest first, after the cursor (`created_at` and id of the last one seen, as `cursor_of` gives)."""
        created_at, _, last_id = after.partition("/")
        conditions = ["tenant = ?", "state = 'running'", "(created_at, id) > (?, ?)"]
        values: list[Any] = [tenant, float(created_at or 0), last_id]
        if user_id is not None:
            conditions.append("user_id = ?")
            values.append(user_id)
        for name, value in metadata.items():
            conditions.append(
                "EXISTS (SELECT 1 FROM json_each(metadata) AS label WHERE label.key = ? AND label.value = ?)"
            )
            values += [name, value]
        sql = f"SELECT * FROM sessions WHERE {' AND '.join(conditions)} ORDER BY created_at, id LIMIT ?"
        return [_session(row) for row in self.quickly(sql, (*values, limit)).fetchall()]

    # For the keeper.

    def running(self) -> list[Session]:
        rows = self.quickly("SELECT * FROM sessions WHERE state = 'running'").fetchall()
        return [_session(row) for row in rows]

    def kept_busy(self, now: float) -> list[Session]:
        """Those whose lease is over, and which live because something may still run in them."""
        sql = (
            "SELECT * FROM sessions WHERE state = 'running' AND last_used_at + lease <= ? AND busy_until > ?"
        )
        return [_session(row) for row in self.quickly(sql, (now, now)).fetchall()]

    def due(self, now: float) -> list[Session]:
        rows = self.quickly(
            f"SELECT * FROM sessions WHERE state = 'running' AND {_DUE}", {"now": now}
        ).fetchall()
        return [_session(row) for row in rows]

    def end_if_due(self, session_id: str, now: float) -> bool:
        """Ends as expired only what is still due: a call may have renewed it a moment ago."""
        with self.writing() as connection:
            sql = f"""UPDATE sessions SET state = 'ended', cause = 'expired', ended_at = :now
                      WHERE id = :id AND state = 'running' AND {_DUE}"""
            return connection.execute(sql, {"id": session_id, "now": now}).rowcount == 1

    def drop_stale(self, opening_before: float, ended_before: float) -> None:
        """Openings that nobody finished, and tombstones old enough to forget."""
        with self.writing() as connection:
            connection.execute(
                "DELETE FROM sessions WHERE state = 'opening' AND created_at < ?", (opening_before,)
            )
            connection.execute("DELETE FROM sessions WHERE state = 'ended' AND ended_at < ?", (ended_before,))
            connection.execute("DELETE FROM detached WHERE until < ?", (opening_before,))
            connection.execute("DELETE FROM used_tickets WHERE until < ?", (opening_before,))


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as exc:
        _log.error("the store failed: %s", exc)
        raise StoreUnavailable("The server's database cannot be used right now. Try again shortly.") from exc


def cursor_of(session: Session) -> str:
    return f"{session.created_at!r}/{session.id}"


def _session(row: sqlite3.Row) -> Session:
    values = dict(row)
    values["metadata"] = json.loads(values["metadata"])
    return Session(**values)
