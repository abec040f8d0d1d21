"""What the keeper last saw of the audit, kept where the web's user cannot write.

An audit that was removed, cut off or put back as it was earlier is whole by itself; the witness misses what
it saw. It may lag behind the audit, but never leads it: what it says was on disk before it was written.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import sqlite3
from pathlib import Path

from server.audit.chain import Head, hash_of
from server.audit.ledger import Ledger, LedgerFailed, head_in

Seen = dict[str, tuple[int, str]]  # by chain: a record's number and its hash

NAME = "audit-witness"

_log = logging.getLogger("sandbox.audit")


class Forged(Exception):
    """The file is there, and not as this installation wrote it."""


class Witness:
    def __init__(self, state: Path, ledger: Ledger) -> None:
        self._path = state / NAME
        self._ledger = ledger

    def keep(self) -> None:
        """Bring the audit to disk, and note it. What is missed already stays noted as it was."""
        try:
            before = self.seen()
        except Forged:
            _log.error("%s was not written by this installation", self._path)
            self._ledger.flush()
            return
        with self._ledger.reading() as connection:
            now = _heads(connection, self._ledger.key)
            now |= {chain: one for chain, one in (before or {}).items() if _missed(connection, chain, *one)}
        if self._ledger.flush() and before != (wanted := {**(before or {}), **now}):
            self._write(wanted)

    def seen(self) -> Seen | None:
        """None where nothing was noted yet."""
        try:
            mac, _, text = self._path.read_text().partition("\n")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as exc:
            raise Forged from exc
        except OSError as exc:
            raise LedgerFailed(str(exc)) from exc
        if not hmac.compare_digest(mac.encode(), self._mac(text).encode()):
            raise Forged
        return {chain: (seq, last) for chain, (seq, last) in json.loads(text).items()}

    def faults(self) -> list[str]:
        """What the audit lacks."""
        try:
            seen = self.seen() or {}  # before the audit is looked at, which goes on growing
        except Forged:
            return ["the witness was not written by this installation"]
        with self._ledger.reading() as connection:
            found = [(chain, _missed(connection, chain, *one)) for chain, one in sorted(seen.items())]
        return [f"{chain}: {words}" for chain, words in found if words is not None]

    def forget(self) -> None:
        self._path.unlink(missing_ok=True)

    def _mac(self, text: str) -> str:
        return hmac.digest(self._ledger.key, f"witness\n{text}".encode(), "sha256").hex()

    def _write(self, seen: Seen) -> None:
        text = json.dumps(seen, sort_keys=True)
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(f"{self._mac(text)}\n{text}")
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
            _sync(self._path.parent)
        except OSError as exc:
            _log.error("the witness of the audit cannot be written: %s", exc)
            raise LedgerFailed(str(exc)) from exc


def _heads(connection: sqlite3.Connection, key: bytes) -> Seen:
    """Those that this installation wrote."""
    rows = connection.execute("SELECT chain, seq, hash, base_seq, base_hash, mac FROM heads")
    heads = [(Head(*row[:5]), row["mac"]) for row in rows]
    return {head.chain: (head.seq, head.hash) for head, mac in heads if mac == head.mac(key)}


def _missed(connection: sqlite3.Connection, chain: str, seq: int, last: str) -> str | None:
    head = head_in(connection, chain)
    if head is None:
        return f"the witness saw {seq} records, and the whole chain is gone"
    if head.seq < seq:
        return f"the witness saw {seq} records, and there are {head.seq}"
    if seq <= head.base_seq:
        return None  # pruned since
    row = connection.execute("SELECT line FROM records WHERE chain = ? AND seq = ?", (chain, seq)).fetchone()
    if row is None or hash_of(row["line"]) != last:
        return f"record {seq} is not the one that the witness saw"
    return None


def _sync(directory: Path) -> None:
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
