"""Rows that nobody will ask for again, taken out of the store a few at a time."""

from __future__ import annotations

import time

from server.store import Store

_AT_ONCE = 200  # tombstones that are dropped together: whoever wants to write waits for milliseconds
_BREATH_SECONDS = 0.005  # others get their turn in between

_BURY = """DELETE FROM sessions WHERE id IN (
               SELECT id FROM sessions INDEXED BY tombstones
               WHERE state = 'ended' AND ended_at < :before LIMIT :most)"""


def drop_stale(store: Store, opening_before: float, ended_before: float) -> None:
    """Openings that nobody finished, and tombstones old enough to forget."""
    with store.writing() as connection:
        connection.execute(
            "DELETE FROM sessions WHERE state = 'opening' AND created_at < ?", (opening_before,)
        )
        connection.execute("DELETE FROM detached WHERE until < ?", (opening_before,))
        for table in ("used_tickets", "create_keys", "run_answers"):
            connection.execute(f"DELETE FROM {table} WHERE until < ?", (opening_before,))
    while store.quickly(_BURY, {"before": ended_before, "most": _AT_ONCE}).rowcount == _AT_ONCE:
        time.sleep(_BREATH_SECONDS)
