"""How long records are kept: by age and by size. What is removed is the beginning of a chain, and it is told.

The chain then begins after a base, whose hash is in its head, and has a record that says what was removed.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace

from server.audit.chain import TIME_AT, TIME_LENGTH, Act, hash_of
from server.audit.ledger import Ledger, head_in
from server.times import timestamp

_AT_ONCE = 2000  # records removed in one transaction, so that nobody waits long
_ROOM = 0.9  # a chain that is too large is cut to this much, so that it is not cut every minute


@dataclass(frozen=True)
class Kept:
    age: float
    size: int


def prune(ledger: Ledger, kept: Kept, now: float) -> int:
    """Returns how many records were removed."""
    with ledger.reading() as connection:
        chains = [row["chain"] for row in connection.execute("SELECT chain FROM heads")]
    return sum(_prune_chain(ledger, chain, kept, now) for chain in chains)


def _prune_chain(ledger: Ledger, chain: str, kept: Kept, now: float) -> int:
    oldest, removed = timestamp(max(0.0, now - kept.age)), 0
    with ledger.reading() as connection:
        size = _size(connection, chain)
    most = int(kept.size * _ROOM) if size > kept.size else kept.size
    while step := _remove(ledger, chain, oldest, most):
        removed += step
    if removed:
        details = {"records": removed, "age": kept.age, "size": kept.size}
        ledger.append(chain, [Act(now, "audit.pruned", "done", "server", details=details)])
    return removed


def _remove(ledger: Ledger, chain: str, oldest: str, most: int) -> int:
    with ledger.writing() as connection:
        head = head_in(connection, chain)
        if head is None:
            return 0
        excess = _size(connection, chain) - most
        sql = f"""SELECT seq, line, substr(line, {TIME_AT}, {TIME_LENGTH}) FROM records
                  WHERE chain = ? ORDER BY seq LIMIT ?"""
        count = freed = 0
        last: tuple[int, str] = (head.base_seq, head.base_hash)
        for seq, line, at in connection.execute(sql, (chain, _AT_ONCE)):
            if (at >= oldest and freed >= excess) or seq == head.seq:
                break
            count, freed, last = count + 1, freed + len(line), (seq, hash_of(line))
        if count:
            connection.execute("DELETE FROM records WHERE chain = ? AND seq <= ?", (chain, last[0]))
            ledger.move(connection, replace(head, base_seq=last[0], base_hash=last[1]), -freed)
        return count


def _size(connection: sqlite3.Connection, chain: str) -> int:
    row = connection.execute("SELECT bytes FROM heads WHERE chain = ?", (chain,)).fetchone()
    return 0 if row is None else int(row[0])
