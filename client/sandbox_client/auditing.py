"""What the server's audit tells of an act."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from .connection import Ask, Connection
from .records import Record, known_fields, read_times

_PAGE = 1000


@dataclass(frozen=True)
class AuditRecord(Record):
    """One act: who, when, from where, what, and what came of it."""

    seq: int
    action: str = ""
    outcome: str = ""  # done, refused or failed
    at: datetime | None = None
    actor: str = ""
    code: str | None = None
    status: int | None = None
    address: str | None = None
    session: str | None = None
    user: str | None = None
    request_id: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    prev: str = ""
    hash: str = ""


def audit_record(answer: Mapping[str, Any]) -> AuditRecord:
    """Read a record."""
    known = known_fields(AuditRecord, answer, required="seq")
    read_times(known, "at")
    return AuditRecord(**known)


async def read(connection: Connection, query: Mapping[str, Any], most: int | None) -> list[AuditRecord]:
    """Records that match, page by page, until there are no more or as many as are wanted."""
    found: list[AuditRecord] = []
    asked = dict(query)
    while most is None or len(found) < most:
        asked["limit"] = _PAGE if most is None else min(_PAGE, most - len(found))
        page = await connection.ask(Ask("GET", "/v1/audit", query=asked))
        found += [audit_record(one) for one in page.get("records") or ()]
        if page.get("next_cursor") is None:
            break
        asked["cursor"] = page["next_cursor"]
    return found
