"""Who is asking: the key becomes a tenant before anything else of the request is read.

Wrong keys and wrong host names are counted by address, apart from everything else, so that guessing is slow
and costs nobody with a right key.
"""

from __future__ import annotations

import re

from flask import g, request

from server.api import scopes
from server.api.addresses import whole_network
from server.api.file_names import bound_in_query
from server.api.problems import Refusal
from server.api.rates import Rates, Standing, class_of
from server.api.wiring import parts
from server.config import Config
from server.errors import SandboxError, StoreUnavailable, Unauthorized
from server.keys import Keys
from server.store import Key
from server.tenant_errors import TenantSuspended
from server.tickets import Tickets

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::\d{1,5})?")
_PURPOSES = {
    "terminal.open_terminal": "terminal",
    "executions.follow_events": "events",
    "contents.download": "download",
    "contents.upload": "upload",
}
OPEN_ENDPOINTS = {
    "status.healthz",
    "status.readyz",
    "status.version",
    "docs.index",
    "docs.openapi",
    "docs.page",
    "docs.style",
}
_MORE_WITH_A_KEY = {"status.readyz"}
_UNCOUNTED = {"status.healthz"}  # whoever looks after this process must always get an answer
# Who has used up the bytes of a day may still see that, and close what is open.
_AT_NO_COST = {"limits.show", "sessions.delete", "sessions.cleanup"}


def presented_key() -> str:
    """The one key sent. Two are as good as none: WSGI joins them, and what is joined is no key."""
    plain = request.environ.get("HTTP_X_API_KEY")
    bearer = request.environ.get("HTTP_AUTHORIZATION")
    if bearer is None or plain is not None:
        return plain or "" if bearer is None else ""
    scheme, _, rest = bearer.partition(" ")
    return rest if scheme.lower() == "bearer" else ""


def client_address() -> str:
    """Who is at the other end, as far as proxies that are trusted say."""
    return parts().limits.addresses.client()


class Gate:
    """Runs before every request: the host's name, the key, the limits, what the key is good for."""

    def __init__(self, config: Config, keys: Keys, tickets: Tickets, rates: Rates) -> None:
        self._config = config
        self._keys = keys
        self._tickets = tickets
        self._rates = rates

    def check(self) -> None:
        self._check_host()
        if request.endpoint in OPEN_ENDPOINTS:
            if request.endpoint not in _UNCOUNTED:
                self._let_in(self._rates.hit("address", whole_network(client_address())))
            if request.endpoint in _MORE_WITH_A_KEY and presented_key():
                self._note_key()
            return
        key = self._keys.of(presented_key()) or self._key_of_ticket()
        if key is None:
            raise self._turned_away(Unauthorized())
        g.key = key
        g.log["tenant"] = key.tenant
        self._let_in(self._rates.hit(class_of(request.endpoint), key.tenant))
        if key.suspended:
            raise TenantSuspended
        scopes.check(request.endpoint, key)
        if request.endpoint not in _AT_NO_COST:
            session_id = (request.view_args or {}).get("session_id")
            user = parts().sessions.user_of(key.tenant, session_id)
            parts().limits.concurrency.check_bytes(key.tenant, user)

    def _note_key(self) -> None:
        """A wrong one is counted and refused as anywhere; without a store every caller is a stranger."""
        try:
            key = self._keys.of(presented_key())
        except StoreUnavailable:
            return
        if key is None:
            raise self._turned_away(Unauthorized())
        g.key = key

    def _let_in(self, standing: Standing) -> None:
        g.standing = standing  # told with the answer, whatever that is
        if standing.exceeded:
            raise standing.refusal()

    def _key_of_ticket(self) -> Key | None:
        """Where a browser cannot send a header, a ticket in the URL stands for the key it was made with."""
        purpose = _PURPOSES.get(request.endpoint or "")
        ticket = request.args.get("ticket")
        if purpose is None or ticket is None:
            return None
        wanted = request.view_args or {}
        of_what = wanted.get("execution_id", "")
        if purpose in ("download", "upload"):
            of_what = bound_in_query()
            g.ticket = ticket  # to be spent when the transfer begins
        return self._tickets.redeem(ticket, purpose, wanted["session_id"], of_what)

    def _turned_away(self, why: SandboxError) -> SandboxError:
        """A right key is never refused for the wrong ones that others sent from the same address."""
        standing = self._rates.hit("failures", whole_network(client_address()))
        if not standing.exceeded:
            return why
        g.standing = standing
        return standing.refusal()

    def _check_host(self) -> None:
        """Against DNS rebinding: a page in a browser reaches 127.0.0.1 only under a name of its own."""
        environ = request.environ
        if "HTTP_HOST" not in environ and environ.get("SERVER_PROTOCOL") == "HTTP/1.1":
            raise self._turned_away(Refusal("malformed_http", "The request has no Host header."))
        host = _HOST.fullmatch(request.host.lower())
        if "*" not in self._config.hosts and (host is None or host[1] not in self._config.hosts):
            words = "This host name is not served here. The operator can add it to SANDBOX_HOSTS."
            raise self._turned_away(Refusal("wrong_host", words))
