"""Whether the audit is whole: nothing altered, moved, put in, left out or cut off. Says what it finds."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from server.audit.chain import Head, hash_of, roster_mac
from server.audit.ledger import Ledger

_MOST_FAULTS = 20


@dataclass
class Finding:
    """What one chain is worth."""

    chain: str
    records: int = 0
    pruned: int = 0  # by retention, before the first that is kept
    seq: int = 0
    hash: str = ""
    faults: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return not self.faults

    def fault(self, words: str) -> None:
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append(words)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "whole": self.is_whole}


def examine(ledger: Ledger, noted: dict[str, tuple[int, str]] | None = None) -> list[Finding]:
    """All chains; `noted` are heads written down elsewhere before, which must be on their chains still."""
    with ledger.reading() as connection:
        rows = {row["chain"]: row for row in connection.execute("SELECT * FROM heads ORDER BY chain")}
        known = rows.keys() | {row[0] for row in connection.execute("SELECT DISTINCT chain FROM records")}
        findings = [
            _examined(connection, ledger.key, chain, rows.get(chain), (noted or {}).get(chain))
            for chain in sorted(known)
        ]
        findings += [_gone(chain) for chain in sorted((noted or {}).keys() - known)]
        if lost := _roster_fault(connection, ledger.key, len(rows)):
            findings.append(Finding("", faults=[lost]))
        return findings


def _gone(chain: str) -> Finding:
    return Finding(chain, faults=["the whole chain is gone"])


def _roster_fault(connection: sqlite3.Connection, key: bytes, chains: int) -> str | None:
    row = connection.execute("SELECT chains, mac FROM roster").fetchone()
    if row is None:
        return "the number of chains is gone" if chains else None
    if row["mac"] != roster_mac(key, row["chains"]):
        return "the number of chains was not written by this installation"
    if row["chains"] != chains:
        return f"there were {row['chains']} chains, and there are {chains}"
    return None


def _examined(
    connection: sqlite3.Connection,
    key: bytes,
    chain: str,
    row: sqlite3.Row | None,
    noted: tuple[int, str] | None,
) -> Finding:
    if row is None:
        return Finding(chain, faults=["its head is gone"])
    head = Head(chain, row["seq"], row["hash"], row["base_seq"], row["base_hash"])
    finding = Finding(chain, pruned=head.base_seq, seq=head.seq, hash=head.hash)
    if row["mac"] != head.mac(key):
        finding.fault("its head was not written by this installation")
    sql = "SELECT seq, line FROM records WHERE chain = ? ORDER BY seq"
    _walk(finding, head, connection.execute(sql, (chain,)), noted)
    return finding


def _walk(finding: Finding, head: Head, rows: Iterator[sqlite3.Row], noted: tuple[int, str] | None) -> None:
    seq, last = head.base_seq, head.base_hash
    for row in rows:
        finding.records += 1
        if row["seq"] != seq + 1:
            finding.fault(f"after record {seq} comes {row['seq']}")
        elif _prev(row["line"], finding.chain, row["seq"]) != last:
            finding.fault(f"record {row['seq']} does not follow what stands before it")
        seq, last = row["seq"], hash_of(row["line"])
        if noted is not None and noted[0] == seq and noted[1] != last:
            finding.fault(f"record {seq} is not the one that was noted")
    if (seq, last) != (head.seq, head.hash):
        finding.fault(f"it ends with record {seq}, but its head is another one: {head.seq}")
    if noted is not None and noted[0] > seq:
        finding.fault(f"record {noted[0]} was noted and is not there")


def _prev(line: str, chain: str, seq: int) -> str | None:
    """What the line says it follows; None if it is not a record of this chain at this place."""
    try:
        record = json.loads(line)
        return str(record["prev"]) if (record["chain"], record["seq"]) == (chain, seq) else None
    except (ValueError, KeyError, TypeError):
        return None
