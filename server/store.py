"""The store: tenants, keys and sessions in SQLite (WAL), shared by the web workers and the keeper.

What is acknowledged to a caller is written with a full sync; renewing a lease is not worth a disk flush and
goes through a second connection that leaves the flush to the next one. Nothing here yields to another
greenlet inside a transaction, so one connection serves a whole process under a plain lock.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from server.as_owner import as_owner_of
from server.create_keys import given_before, note_given
from server.errors import IdempotencyConflict, StoreUnavailable
from server.occupancy import give_up, moved_in, occupy
from server.records import Key, Session, cursor_of, key_of_row, session_of, values_of
from server.schema import bring_up_to_date

__all__ = ["Key", "Session", "Store", "cursor_of"]

_BUSY_SECONDS = 10.0
_MOST_SEEN = 4096
_UNUSABLE = (sqlite3.DatabaseError, OSError)  # a full disk, a lock, garbage in the file
_MISTAKES = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError, sqlite3.InternalError)

_log = logging.getLogger("sandbox.store")


_COLUMNS = tuple(column.name for column in fields(Session))
_KEY = """SELECT keys.*, tenants.suspended_at IS NOT NULL AS suspended
          FROM keys LEFT JOIN tenants ON tenants.id = keys.tenant WHERE keys.id = ?"""
_DUE = "(must_end_at <= :now OR max(last_used_at + lease, busy_until) <= :now)"


@dataclass
class Seen:
    """Rows as they were when the database was at this version."""

    version: int = -1
    keys: dict[str, Key] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)


Admit = Callable[[sqlite3.Connection, Session], None]


class Rows(list[sqlite3.Row]):
    """What a statement gave, and how many rows it changed."""

    def __init__(self, rows: list[sqlite3.Row], rowcount: int) -> None:
        super().__init__(rows)
        self.rowcount = rowcount

    def fetchone(self) -> Any:
        return self[0] if self else None

    def fetchall(self) -> list[sqlite3.Row]:
        return self


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
            bring_up_to_date(connection)
            self._connections[synchronous] = connection
        return connection

    def _opened(self, synchronous: str) -> sqlite3.Connection:
        with self._lock, _working_in(self._path.parent):
            return self._connection(synchronous)

    @contextmanager
    def writing(self, synchronous: str = "FULL") -> Iterator[sqlite3.Connection]:
        """A transaction that is on disk when this returns, or, if NORMAL, with the next one that is."""
        with self._lock, _working_in(self._path.parent):
            connection = self._connection(synchronous)
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def quickly(self, sql: str, values: dict[str, Any] | tuple[Any, ...] = ()) -> Rows:
        """All rows at once: a statement left open would hold this connection, and every thread that reads
        through it, at the moment at which it began."""
        with self._lock, _working_in(self._path.parent):
            cursor = self._connection("NORMAL").execute(sql, values)
            return Rows(cursor.fetchall(), cursor.rowcount)

    def _unchanged(self) -> Seen:
        """What was read before, as long as nobody has written since: SQLite counts others' transactions.

        Our own on the same connection are not counted, so whoever makes them drops what they change.
        """
        try:  # without the lock, which guards transactions: this belongs to none, and is asked all the time
            connection = self._connections.get("NORMAL") or self._opened("NORMAL")
            version: int = connection.execute("PRAGMA data_version").fetchone()[0]
        except _UNUSABLE as exc:
            raise _unavailable(exc) from exc
        most = max(len(self._seen.sessions), len(self._seen.keys))
        if version != self._seen.version or most > _MOST_SEEN:
            self._seen = Seen(version)
        return self._seen

    def close(self) -> None:
        with self._lock, as_owner_of(self._path.parent):
            while self._connections:
                self._connections.popitem()[1].close()

    def check_writable(self, now: float) -> None:
        """Raises StoreUnavailable when a write would fail."""
        with self.writing() as connection:
            connection.execute("DELETE FROM written")
            connection.execute("INSERT INTO written VALUES (?)", (now,))

    # Tenants and keys, as far as every request needs them.

    def add_tenant(self, tenant: str, now: float) -> None:
        """Unless there is, or was, one of that name."""
        with self.writing() as connection:
            connection.execute("INSERT OR IGNORE INTO tenants (id, created_at) VALUES (?, ?)", (tenant, now))

    def limits(self, tenant: str) -> str:
        """Those of the tenant's own, as JSON."""
        limits = self._unchanged().limits
        if tenant not in limits:
            row = self.quickly("SELECT limits FROM tenants WHERE id = ?", (tenant,)).fetchone()
            limits[tenant] = "{}" if row is None else row[0]
        return limits[tenant]

    def key(self, key_id: str) -> Key | None:
        keys = self._unchanged().keys
        if key_id not in keys:
            row = self.quickly(_KEY, (key_id,)).fetchone()
            if row is None:
                return None
            keys[key_id] = key_of_row(row)
        return keys[key_id]

    # Sessions.

    def reserve(self, wanted: Session, admit: Admit) -> tuple[Session, bool]:
        """The session that `wanted` becomes, or the one that stands in its place; and whether it is new.

        One transaction: a quota cannot be exceeded, nor a user get two sessions, however many ask at once.
        `admit` raises if there is no room for it. It need not be on disk: nothing is acknowledged before
        `attach`, which says what must be.
        """
        self._seen = Seen()  # what follows is written by the connection that reads
        with self.writing("NORMAL") as connection:
            standing = self._standing(connection, wanted)
            if standing is not None:
                return standing, False
            admit(connection, wanted)
            values = values_of(wanted)
            values["volume"] = occupy(connection, wanted.tenant, values, wanted.created_at)
            names = ", ".join(_COLUMNS)
            marks = ", ".join(f":{name}" for name in _COLUMNS)
            connection.execute(f"INSERT INTO sessions ({names}) VALUES ({marks})", values)
        return replace(wanted, volume=values["volume"]), True

    def _standing(self, connection: sqlite3.Connection, wanted: Session) -> Session | None:
        if wanted.idempotency_key is not None:
            sql = "SELECT * FROM sessions WHERE tenant = ? AND idempotency_key = ?"
            row = connection.execute(sql, (wanted.tenant, wanted.idempotency_key)).fetchone()
            if row is not None:
                if row["fingerprint"] != wanted.fingerprint:
                    raise IdempotencyConflict
                return session_of(row)
            if (given := given_before(connection, wanted)) is not None:
                return given
        sql = "SELECT * FROM sessions WHERE tenant = ? AND user_id = ? AND state != 'ended'"
        row = connection.execute(sql, (wanted.tenant, wanted.user_id)).fetchone()
        if row is None and wanted.visit:  # whoever has the workspace can be asked what is in it
            sql = "SELECT * FROM sessions WHERE tenant = ? AND workspace = ? AND state != 'ended'"
            row = connection.execute(sql, (wanted.tenant, wanted.workspace)).fetchone()
        if row is None:
            return None
        note_given(connection, wanted, row["id"])
        return session_of(row)

    def attach(
        self,
        session_id: str,
        sandbox: str,
        address: str,
        now: float,
        volume: str | None = None,
        synchronous: str = "FULL",
    ) -> bool:
        """The sandbox is ready: the session runs. False if nobody waits for it any more.

        `volume` if it came with another one than was wished for.
        """
        with self.writing(synchronous) as connection:
            sql = """UPDATE sessions SET state = 'running', sandbox = ?, address = ?, last_used_at = ?,
                     volume = coalesce(?, volume) WHERE id = ? AND state = 'opening'"""
            values = (sandbox, address, now, volume, session_id)
            attached = connection.execute(sql, values).rowcount == 1
            moved_in(connection, session_id, now)
        self._seen.sessions.pop(session_id, None)
        return attached

    def release(self, session_id: str) -> None:
        """Opening failed: as if it had never been asked for."""
        with self.writing() as connection:
            give_up(connection, session_id)
            connection.execute("DELETE FROM sessions WHERE id = ? AND state = 'opening'", (session_id,))

    def session(self, session_id: str) -> Session | None:
        sessions = self._unchanged().sessions
        if session_id not in sessions:
            row = self.quickly("SELECT * FROM sessions WHERE id = ?", (session_id,)).fetchone()
            if row is None:
                return None
            sessions[session_id] = session_of(row)
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

    def end(self, session_id: str, cause: str, now: float, sandbox: str | None = None) -> bool:
        """Whether this call is the one that ended it; only while it has `sandbox`, if that is named.

        The row stays as a tombstone.
        """
        with self.writing() as connection:
            sql = """UPDATE sessions SET state = 'ended', cause = :cause, ended_at = :now
                     WHERE id = :id AND state != 'ended' AND (:sandbox IS NULL OR sandbox = :sandbox)"""
            values = {"cause": cause, "now": now, "id": session_id, "sandbox": sandbox}
            return connection.execute(sql, values).rowcount == 1

    def list_running(
        self, tenant: str, user_id: str | None, metadata: dict[str, str], after: str, limit: int
    ) -> list[Session]:
        """Oldest first, after the cursor (`created_at` and id of the last one seen, as `cursor_of` gives)."""
        created_at, _, last_id = after.partition("/")
        conditions = ["tenant = ?", "state = 'running'", "NOT visit", "(created_at, id) > (?, ?)"]
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
        return [session_of(row) for row in self.quickly(sql, (*values, limit)).fetchall()]

    # For the keeper.

    def running(self) -> list[Session]:
        rows = self.quickly("SELECT * FROM sessions WHERE state = 'running'").fetchall()
        return [session_of(row) for row in rows]

    def due(self, now: float) -> list[Session]:
        rows = self.quickly(
            f"SELECT * FROM sessions WHERE state = 'running' AND {_DUE}", {"now": now}
        ).fetchall()
        return [session_of(row) for row in rows]

    def end_if_due(self, session_id: str, now: float) -> bool:
        """Ends as expired only what is still due: a call may have renewed it a moment ago."""
        with self.writing() as connection:
            sql = f"""UPDATE sessions SET state = 'ended', cause = 'expired', ended_at = :now
                      WHERE id = :id AND state = 'running' AND {_DUE}"""
            return connection.execute(sql, {"id": session_id, "now": now}).rowcount == 1


@contextmanager
def _working_in(directory: Path) -> Iterator[None]:
    try:
        with as_owner_of(directory):
            yield
    except _UNUSABLE as exc:
        if isinstance(exc, _MISTAKES):
            raise
        raise _unavailable(exc) from exc


def _unavailable(exc: Exception) -> StoreUnavailable:
    _log.error("the store failed: %s", exc)
    return StoreUnavailable("The server's database cannot be used right now. Try again shortly.")
