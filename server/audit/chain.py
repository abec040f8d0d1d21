"""A record is one line of JSON, and a chain is lines of which each holds the hash of the one before.

The hash of a record is the SHA-256 of its line, so that whoever has an export can check it without us. The
head of a chain is kept apart with a MAC: who can write the file but does not know this installation's secret
can neither shorten a chain nor write it anew.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass, field
from typing import Any

from server.times import timestamp

INSTANCE = "@instance"  # what was done to the installation as a whole; no tenant is called so
ANONYMOUS = "@anonymous"  # what was asked without a valid key
NOTHING = "0" * 64  # what the first record of a chain follows
TIME_AT = len('{"at":"') + 1  # where SQLite finds a line's time, and how long that is
TIME_LENGTH = 24
_LONGEST = 4096
_encoded = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True)
class Act:
    """What happened, before it has its place in a chain."""

    at: float
    action: str
    outcome: str  # done, refused or failed
    actor: str  # key:ID, operator:NAME, server or anonymous
    code: str | None = None
    status: int | None = None
    address: str | None = None
    session: str | None = None
    user: str | None = None
    request_id: str | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Head:
    """The last record of a chain, and where what is kept of it begins: after `base`, which was pruned."""

    chain: str
    seq: int = 0
    hash: str = NOTHING
    base_seq: int = 0
    base_hash: str = NOTHING

    def mac(self, key: bytes) -> str:
        facts = f"head\n{self.chain}\n{self.seq}\n{self.hash}\n{self.base_seq}\n{self.base_hash}"
        return hmac.digest(key, facts.encode(), "sha256").hex()


def line_of(head: Head, act: Act) -> str:
    """The record that comes after `head`: printable ASCII only, whatever a client has said."""
    fields = {**vars(act), "details": {name: _bounded(value) for name, value in act.details.items()}}
    fields["at"] = timestamp(act.at)  # first, at a place that never moves
    record = {**fields, "chain": head.chain, "seq": head.seq + 1, "prev": head.hash}
    return _encoded(record).replace("\x7f", "\\u007f")


def hash_of(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()


def exported(line: str) -> str:
    """A record as it is handed out: with its hash, which is that of the line without this last field."""
    return f'{line[:-1]},"hash":"{hash_of(line)}"}}'


def roster_mac(key: bytes, chains: int) -> str:
    """How many chains there are: one that is removed with its head is missed."""
    return hmac.digest(key, f"roster\n{chains}".encode(), "sha256").hex()


def _bounded(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _LONGEST:
        return value[:_LONGEST]
    return value
