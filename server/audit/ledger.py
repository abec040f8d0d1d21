"""The file that chains are kept in: SQLite beside the store, so that neither waits for the other.

Appending is one short transaction. It is in the kernel's hands when it returns: a process that is killed
loses nothing. The keeper brings it to disk every few seconds, so that no worker waits for a disk.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

from server.as_owner import as_owner_of, open_plain
from server.audit.chain import Act, Head, hash_of, line_of, roster_mac

_BUSY_SECONDS = 2.0  # a transaction takes a tenth of a millisecond
_READ_SECONDS = 5.0
_MOST_WAL_PAGES = 16384  # the keeper does it long before; this is for when there is none
_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
    chain TEXT NOT NULL,
    seq INTEGER NOT NULL,
    line TEXT NOT NULL,
    PRIMARY KEY (chain, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS heads (
    chain TEXT PRIMARY KEY,
    seq INTEGER NOT NULL,
    hash TEXT NOT NULL,
    base_seq INTEGER NOT NULL,
    base_hash TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    mac TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS roster (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    chains INTEGER NOT NULL,
    mac TEXT NOT NULL
) STRICT;
CREATE TRIGGER IF NOT EXISTS what_is_written_stays
    BEFORE UPDATE ON records BEGIN SELECT RAISE(ABORT, 'records are not changed'); END;
"""
_HEAD = "SELECT chain, seq, hash, base_seq, base_hash FROM heads WHERE chain = ?"

_log = logging.getLogger("sandbox.audit")


class LedgerFailed(Exception):
    """It cannot be read or written now: a full disk, most often."""


class Ledger:
    def __init__(self, path: Path, key: bytes) -> None:
        self.path = path
        self.key = key
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def append(self, chain: str, acts: Iterable[Act]) -> None:
        with self.writing() as connection:
            head = head_in(connection, chain)
            if head is None:
                head = self._begun(connection, chain)
            lines = []
            for act in acts:
                line = line_of(head, act)
                head = Head(chain, head.seq + 1, hash_of(line), head.base_seq, head.base_hash)
                lines.append((chain, head.seq, line))
            connection.executemany("INSERT INTO records VALUES (?, ?, ?)", lines)
            self.move(connection, head, sum(len(line) for _, _, line in lines))

    def _begun(self, connection: sqlite3.Connection, chain: str) -> Head:
        head = Head(chain)
        values = {**asdict(head), "mac": head.mac(self.key)}
        sql = "INSERT INTO heads VALUES (:chain, :seq, :hash, :base_seq, :base_hash, 0, :mac)"
        self._enrol(connection)
        connection.execute(sql, values)
        return head

    def _enrol(self, connection: sqlite3.Connection) -> None:
        """One chain more than was signed. Counted anew, one that was removed would be forgotten."""
        signed = connection.execute("SELECT chains, mac FROM roster").fetchone()
        if signed is None and connection.execute("SELECT 1 FROM heads LIMIT 1").fetchone() is None:
            signed = (0, roster_mac(self.key, 0))
        if signed is None or signed[1] != roster_mac(self.key, signed[0]):
            return
        told = (signed[0] + 1, roster_mac(self.key, signed[0] + 1))
        connection.execute("INSERT OR REPLACE INTO roster VALUES (1, ?, ?)", told)

    def move(self, connection: sqlite3.Connection, head: Head, more: int) -> None:
        """Inside a transaction: the chain has grown, or its beginning was pruned, by so many bytes."""
        sql = """UPDATE heads SET seq = ?, hash = ?, base_seq = ?, base_hash = ?, bytes = bytes + ?, mac = ?
                 WHERE chain = ?"""
        values = (head.seq, head.hash, head.base_seq, head.base_hash, more, head.mac(self.key), head.chain)
        connection.execute(sql, values)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _working_in(self.path.parent):
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Everything as it was at one moment, however long it is looked at."""
        self.prepare()
        with (
            _working_in(self.path.parent),
            closing(sqlite3.connect(self.path, timeout=_READ_SECONDS, isolation_level=None)) as connection,
        ):
            connection.row_factory = sqlite3.Row
            connection.execute("BEGIN")
            yield connection

    def flush(self) -> bool:
        """To disk, as far as nobody reads what was there before. Whether that was all."""
        with self._lock, _working_in(self.path.parent):
            checkpoint = self._opened().execute("PRAGMA wal_checkpoint(PASSIVE)")
            busy, frames, written = checkpoint.fetchone()
            return not busy and frames == written

    def prepare(self) -> None:
        """Make the file and its tables, if they are not there."""
        with self._lock, _working_in(self.path.parent):
            self._opened()

    def close(self) -> None:
        with self._lock, _working_in(self.path.parent):
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _opened(self) -> sqlite3.Connection:
        """At first use: gunicorn forks between the wiring and the first request."""
        if self._connection is None:
            os.close(open_plain(self.path, os.O_CREAT))
            connection = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(f"PRAGMA wal_autocheckpoint={_MOST_WAL_PAGES}")
            connection.executescript(_SCHEMA)
            self._connection = connection
        return self._connection


def head_in(connection: sqlite3.Connection, chain: str) -> Head | None:
    row = connection.execute(_HEAD, (chain,)).fetchone()
    return None if row is None else Head(*row)


@contextmanager
def _working_in(directory: Path) -> Iterator[None]:
    """As its owner: root may be the first to open what the web's user writes."""
    try:
        with as_owner_of(directory):
            yield
    except (sqlite3.DatabaseError, OSError) as exc:
        _log.error("the audit cannot be used: %s", exc)
        raise LedgerFailed(str(exc)) from exc
