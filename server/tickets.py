"""Tickets: what a browser may put into a URL, where a key must never be.

A ticket is signed, not stored. It opens one thing of one session for a while: its terminal, once, one
execution's events, which a browser asks for again after every break, or one download or upload of a file. It
dies with the key it was made with, and opens nothing that this key does not.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass

from server.instance import Instance
from server.store import Key, Store

SECONDS = {"terminal": 60.0, "events": 3600.0}
_SPENT_LATER = ("download", "upload")
_LONGEST = 1024


@dataclass(frozen=True)
class Ticket:
    id: str
    purpose: str
    key: str
    session: str
    execution: str
    until: float


class Tickets:
    def __init__(self, instance: Instance, store: Store, clock: Callable[[], float]) -> None:
        self._secret = hmac.new(instance.secret, b"tickets", hashlib.sha256).digest()
        self._store = store
        self._clock = clock

    def issue(
        self,
        purpose: str,
        key: str,
        session: str,
        execution: str,
        seconds: float | None = None,
        key_expires_at: float | None = None,
    ) -> tuple[str, float]:
        """The ticket as text, and until when it is good. For files, `execution` is what binds it to one."""
        until = self._clock() + (seconds or SECONDS[purpose])
        until = until if key_expires_at is None else min(until, key_expires_at)
        ticket = Ticket(secrets.token_hex(8), purpose, key, session, execution, until)
        body = base64.urlsafe_b64encode(json.dumps(asdict(ticket)).encode()).decode().rstrip("=")
        return f"{body}.{self._signature(body)}", until

    def redeem(self, text: str, purpose: str, session: str, execution: str) -> Key | None:
        """The key that it stands for, or None for every way in which a ticket can be wrong."""
        ticket = self._read(text)
        if ticket is None or ticket.until <= self._clock():
            return None
        if (ticket.purpose, ticket.session, ticket.execution) != (purpose, session, execution):
            return None
        key = self._store.key(ticket.key)
        if key is None or key.state(self._clock()) != "active":
            return None
        if purpose == "terminal" and not self._first_use(ticket):
            return None
        if purpose in _SPENT_LATER and self._is_spent(ticket):
            return None
        return key

    def spend(self, text: str) -> bool:
        """Use up a ticket that was redeemed, now that what it is good for begins; false if it was before."""
        ticket = self._read(text)
        return ticket is not None and self._first_use(ticket)

    def _read(self, text: str) -> Ticket | None:
        body, _, signature = text[:_LONGEST].partition(".")
        if not hmac.compare_digest(self._signature(body).encode(), signature.encode("utf-8", "replace")):
            return None
        try:
            return Ticket(**json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))))
        except (binascii.Error, TypeError, ValueError):
            return None

    def _signature(self, body: str) -> str:
        return hmac.new(self._secret, body.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    def _first_use(self, ticket: Ticket) -> bool:
        with self._store.writing() as connection:
            sql = "INSERT OR IGNORE INTO used_tickets VALUES (?, ?)"
            return connection.execute(sql, (ticket.id, ticket.until)).rowcount == 1

    def _is_spent(self, ticket: Ticket) -> bool:
        sql = "SELECT 1 FROM used_tickets WHERE id = ?"
        return self._store.quickly(sql, (ticket.id,)).fetchone() is not None


def file_binding(path: bytes, mode: str | None) -> str:
    """What ties a ticket to one file, however long its path is."""
    return hashlib.sha256(path + b"\0" + (mode or "").encode()).hexdigest()
