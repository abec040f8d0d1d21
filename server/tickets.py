"""Tickets: what a browser may put into a URL, where a key must never be.

A ticket is signed, not stored. It opens one thing of one session for a short time: its terminal, once, or one
execution's events, which a browser asks for again after every break. It dies with the key it was made with.
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

    def issue(self, purpose: str, key: str, session: str, execution: str) -> tuple[str, float]:
        """The ticket as text, and until when it is good."""
        until = self._clock() + SECONDS[purpose]
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
        if key is None or self._store.is_revoked(key.id):
            return None
        if purpose == "terminal" and not self._first_use(ticket):
            return None
        return key

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
