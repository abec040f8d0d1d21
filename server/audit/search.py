"""Looking into a chain: by time, action, session, user, actor and outcome, page by page in either direction.

There is no index but the order: a page looks at so many records, and may give fewer, or none, and a cursor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from server.audit.chain import TIME_AT, TIME_LENGTH, exported
from server.audit.ledger import Ledger

_LOOKED_AT = 5000  # records, about as many microseconds


@dataclass(frozen=True)
class Query:
    """What is looked for. `since` and `until` as timestamps are written."""

    since: str | None = None
    until: str | None = None
    action: str | None = None
    session: str | None = None
    user: str | None = None
    actor: str | None = None
    outcome: str | None = None
    newest_first: bool = False

    def condition(self) -> tuple[str, list[object]]:
        time = f"substr(line, {TIME_AT}, {TIME_LENGTH})"
        terms: list[str] = []
        values: list[object] = []
        for name in ("action", "session", "user", "actor", "outcome"):
            if (wanted := getattr(self, name)) is not None:
                # A quote inside of what a client has said has a backslash before it: this finds fields only.
                terms.append("instr(line, ?)")
                values.append(f'"{name}":{json.dumps(wanted)}'.replace("\x7f", "\\u007f"))
        for sign, moment in ((">=", self.since), ("<", self.until)):
            if moment is not None:
                terms.append(f"{time} {sign} ?")
                values.append(moment)
        return " AND ".join(terms) or "1", values


@dataclass(frozen=True)
class Page:
    lines: list[str]
    cursor: int | None  # of the next page, if there may be one


def page(ledger: Ledger, chain: str, query: Query, cursor: int | None, limit: int) -> Page:
    """Records after the cursor (or before it, newest first), each with its hash."""
    condition, values = query.condition()
    sign, order = ("<", "DESC") if query.newest_first else (">", "ASC")
    begin = cursor if cursor is not None else (1 << 62) * query.newest_first
    window = f"SELECT seq, line FROM records WHERE chain = ? AND seq {sign} ? ORDER BY seq {order} LIMIT ?"
    with ledger.reading() as connection:
        sql = f"SELECT seq FROM ({window}) ORDER BY seq {order} LIMIT 1 OFFSET ?"
        edge = connection.execute(sql, (chain, begin, _LOOKED_AT, _LOOKED_AT - 1)).fetchone()
        sql = f"SELECT seq, line FROM ({window}) WHERE {condition} ORDER BY seq {order} LIMIT ?"
        rows = connection.execute(sql, (chain, begin, _LOOKED_AT, *values, limit)).fetchall()
    following = rows[-1]["seq"] if len(rows) == limit else None if edge is None else edge["seq"]
    return Page([exported(row["line"]) for row in rows], following)


def pages(
    ledger: Ledger, chain: str, query: Query, cursor: int | None, limit: int, between: Callable[[], None]
) -> Iterator[Page]:
    """All of them; others have their turn in between."""
    while True:
        found = page(ledger, chain, query, cursor, limit)
        yield found
        if found.cursor is None:
            return
        cursor = found.cursor
        between()
