"""Sessions that ended, or fell asleep, by no request of anybody's.

The store notes each in the transaction that does it (a trigger, so that nobody can forget to), and from there
it goes into the audit. A crash in between leaves it noted: it may be recorded twice, never not at all.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter

from server.audit.chain import Act
from server.audit.ledger import Ledger
from server.store import Store

_AT_ONCE = 1000


def carry_over(store: Store, ledger: Ledger) -> int:
    """Into the chains. Returns how many there were. Several may do this at once."""
    if not store.quickly("SELECT 1 FROM session_events LIMIT 1"):
        return 0
    with store.writing() as connection:
        sql = f"SELECT * FROM session_events ORDER BY tenant, id LIMIT {_AT_ONCE}"
        rows = connection.execute(sql).fetchall()
        for tenant, events in groupby(rows, itemgetter("tenant")):
            ledger.append(
                tenant,
                [
                    Act(
                        row["at"],
                        f"session.{row['event']}",
                        "done",
                        "server",
                        session=row["session"],
                        user=row["user_id"],
                        details={"cause": row["cause"]} if row["cause"] is not None else {},
                    )
                    for row in events
                ],
            )
        connection.executemany("DELETE FROM session_events WHERE id = ?", [(row["id"],) for row in rows])
    return len(rows)
