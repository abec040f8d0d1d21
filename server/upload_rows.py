"""Uploads in the store. A file has a row before it has a name on disk, and loses its name after its row.

So a file without a row is nobody's, whatever crashed. `upload_calls` are requests that are being received,
with the bytes that they have reserved, and those that came with an idempotency key, with their answers.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from server.errors import IdempotencyConflict
from server.store import Rows, Store
from server.upload_errors import TooManyUploads

_ANSWERED_SECONDS = 86400.0  # how long an idempotency key is good for, also when its files are gone
_MOST_ANSWERS = 1000  # of a tenant; the oldest go first
_TOO_MANY_ANSWERS = f"""DELETE FROM upload_calls WHERE tenant = ? AND answer IS NOT NULL AND until < (
    SELECT until FROM upload_calls WHERE tenant = ? AND answer IS NOT NULL
    ORDER BY until DESC LIMIT 1 OFFSET {_MOST_ANSWERS - 1})"""
SMALLEST = 64 << 10  # what a file counts at least: it takes an inode and a row
# Those that live sessions have as datasets.
_READ = "SELECT value FROM sessions, json_each(sessions.datasets) WHERE sessions.state != 'ended'"
_USED = f"""SELECT (SELECT coalesce(sum(max(size, {SMALLEST})), 0) FROM uploads
                    WHERE tenant = :tenant AND sha256 IS NOT NULL
                    AND (expires_at > :now OR id IN ({_READ})))
                 + (SELECT coalesce(sum(reserved), 0) FROM upload_calls
                    WHERE tenant = :tenant AND until > :now)"""


@dataclass(frozen=True)
class Upload:
    id: str
    tenant: str
    name: str
    mime: str
    size: int
    sha256: str
    created_at: float
    expires_at: float


class Lost(Exception):
    """The call was taken for dead: too long nothing was heard of it."""


class UploadRows:
    def __init__(self, store: Store) -> None:
        self._store = store

    def reserve(self, call: str, tenant: str, size: int, now: float, until: float, most: int) -> None:
        """Make a call's reservation so large, in one transaction however many ask."""
        values = {"id": call, "tenant": tenant, "size": size, "now": now, "until": until}
        with self._store.writing() as connection:
            connection.execute("DELETE FROM upload_calls WHERE id = :id", values)
            if connection.execute(_USED, values).fetchone()[0] + size > most:
                raise TooManyUploads(most)
            connection.execute(
                "INSERT INTO upload_calls (id, tenant, reserved, until) VALUES (:id, :tenant, :size, :until)",
                values,
            )

    def touch(self, call: str, until: float) -> None:
        sql = "UPDATE upload_calls SET until = ? WHERE id = ?"
        if self._store.quickly(sql, (until, call)).rowcount != 1:
            raise Lost

    def announce(self, call: str, upload: str, tenant: str, now: float) -> None:
        """A file is about to be made."""
        sql = "INSERT INTO uploads (id, tenant, call, created_at) VALUES (?, ?, ?, ?)"
        self._store.quickly(sql, (upload, tenant, call, now))

    def answered(self, tenant: str, key: str, now: float) -> bool:
        """Whether something was received under this key."""
        return _answered(self._store.quickly(*_answer_of(tenant, key, now))) is not None

    def keep(
        self, call: str, tenant: str, files: list[Upload], key: str | None, fingerprint: str, now: float
    ) -> list[Upload]:
        """What the call has brought, or what the same call has brought before."""
        with self._store.writing() as connection:
            if key is not None:
                before = _answered(connection.execute(*_answer_of(tenant, key, now)))
                if before is not None and before[0] != fingerprint:
                    raise IdempotencyConflict
                if before is not None:
                    return before[1]
            if connection.execute("DELETE FROM upload_calls WHERE id = ?", (call,)).rowcount != 1:
                raise Lost
            sql = """UPDATE uploads SET name = :name, mime = :mime, size = :size, sha256 = :sha256,
                     created_at = :created_at, expires_at = :expires_at WHERE id = :id"""
            connection.executemany(sql, [asdict(file) for file in files])
            if key is not None:
                until = max(now + _ANSWERED_SECONDS, *(file.expires_at for file in files))
                answer = json.dumps([asdict(file) for file in files])
                connection.execute(
                    "INSERT OR REPLACE INTO upload_calls VALUES (?, ?, 0, ?, ?, ?, ?)",
                    (call, tenant, until, key, fingerprint, answer),
                )
                connection.execute(_TOO_MANY_ANSWERS, (tenant, tenant))
        return files

    def drop_call(self, call: str) -> None:
        """What it has brought and nobody keeps."""
        with self._store.writing() as connection:
            connection.execute("DELETE FROM upload_calls WHERE id = ? AND fingerprint IS NULL", (call,))
            connection.execute("DELETE FROM uploads WHERE call = ? AND sha256 IS NULL", (call,))

    def kept(self, tenant: str, uploads: Iterable[str]) -> dict[str, Upload]:
        """The same, also those that only live sessions still read."""
        return self.find(tenant, uploads, -1.0)

    def find(self, tenant: str, uploads: Iterable[str], now: float) -> dict[str, Upload]:
        """Those of them that are there and the tenant's."""
        wanted = json.dumps(list(uploads))
        sql = """SELECT * FROM uploads WHERE tenant = ? AND sha256 IS NOT NULL AND expires_at > ?
                 AND id IN (SELECT value FROM json_each(?))"""
        return {row["id"]: _upload(row) for row in self._store.quickly(sql, (tenant, now, wanted))}

    def list(self, tenant: str, after: tuple[float, str], limit: int, now: float) -> list[Upload]:
        """Oldest first."""
        sql = """SELECT * FROM uploads WHERE tenant = ? AND sha256 IS NOT NULL AND expires_at > ?
                 AND (created_at, id) > (?, ?) ORDER BY created_at, id LIMIT ?"""
        rows = self._store.quickly(sql, (tenant, now, *after, limit)).fetchall()
        return [_upload(row) for row in rows]

    def renew(self, uploads: Iterable[str], until: float) -> None:
        """They are of use: what was sent once need not be sent again."""
        sql = """UPDATE uploads SET expires_at = max(expires_at, ?)
                 WHERE id IN (SELECT value FROM json_each(?))"""
        self._store.quickly(sql, (until, json.dumps(list(uploads))))

    def withdraw(self, upload: str, now: float) -> bool:
        """Nobody finds it any more. False while a live session reads it: it stays till then, and counts."""
        with self._store.writing() as connection:
            connection.execute(
                "UPDATE uploads SET expires_at = min(expires_at, ?) WHERE id = ?", (now, upload)
            )
            sql = f"DELETE FROM uploads WHERE id = ? AND id NOT IN ({_READ})"
            return connection.execute(sql, (upload,)).rowcount == 1

    def delete(self, upload: str) -> None:
        with self._store.writing() as connection:
            connection.execute("DELETE FROM uploads WHERE id = ?", (upload,))

    def drop_stale(self, now: float) -> None:
        """What is too old, and what calls have left that were never finished."""
        with self._store.writing() as connection:
            connection.execute("DELETE FROM upload_calls WHERE until <= ?", (now,))
            connection.execute(
                f"""DELETE FROM uploads WHERE (expires_at <= ? AND id NOT IN ({_READ}))
                    OR (sha256 IS NULL AND call NOT IN (SELECT id FROM upload_calls))""",
                (now,),
            )

    def all(self) -> dict[str, bool]:
        """By id, whether it is whole."""
        rows = self._store.quickly("SELECT id, sha256 IS NOT NULL FROM uploads").fetchall()
        return {row[0]: bool(row[1]) for row in rows}


def _answer_of(tenant: str, key: str, now: float) -> tuple[str, tuple[object, ...]]:
    sql = (
        "SELECT fingerprint, answer FROM upload_calls WHERE tenant = ? AND idempotency_key = ? AND until > ?"
    )
    return sql, (tenant, key, now)


def _answered(found: sqlite3.Cursor | Rows) -> tuple[str, list[Upload]] | None:
    row = found.fetchone()
    return None if row is None else (row[0], [Upload(**one) for one in json.loads(row[1])])


def _upload(row: sqlite3.Row) -> Upload:
    return Upload(**{name: row[name] for name in Upload.__dataclass_fields__})
