"""Who is asking: the key becomes a tenant before anything else of the request is read.

Wrong keys are counted by address, apart from everything else, so that guessing is slow and costs nobody
with a right key.
"""

from __future__ import annotations

import re

from flask import g, request
from flask_limiter import Limiter
from limits import parse as parse_limit

from server.api.problems import Refusal
from server.config import Config
from server.errors import SandboxError, Unauthorized
from server.keys import key_of
from server.store import Key, Store
from server.tickets import Tickets

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::\d{1,5})?")
_THIS_MACHINE = {"127.0.0.1", "::1"}
_PURPOSES = {"terminal.open_terminal": "terminal", "executions.follow_events": "events"}
OPEN_ENDPOINTS = {
    "status.healthz",
    "status.readyz",
    "status.version",
    "describe.index",
    "describe.openapi",
    "describe.docs",
    "describe.style",
}


def presented_key() -> str:
    """The one key sent. Two are as good as none: WSGI joins them, and what is joined is no key."""
    plain = request.environ.get("HTTP_X_API_KEY")
    bearer = request.environ.get("HTTP_AUTHORIZATION")
    if bearer is None or plain is not None:
        return plain or "" if bearer is None else ""
    scheme, _, rest = bearer.partition(" ")
    return rest if scheme.lower() == "bearer" else ""


def client_address() -> str:
    """Who is at the other end. A proxy's word for it counts only when the proxy is on this machine."""
    peer = request.remote_addr or ""
    told = request.environ.get("HTTP_X_FORWARDED_FOR", "").rpartition(",")[2].strip()
    return told[:64] if told and peer in _THIS_MACHINE else peer


class Gate:
    """Runs before every request: the host's name, the key, the limits."""

    def __init__(self, config: Config, store: Store, tickets: Tickets, limiter: Limiter) -> None:
        self._config = config
        self._store = store
        self._tickets = tickets
        self._limiter = limiter
        self._per_tenant = parse_limit(config.rate_limit)
        self._per_failure = parse_limit(config.failure_limit)

    def check(self) -> None:
        self._check_host()
        if request.endpoint in OPEN_ENDPOINTS:
            return
        key = key_of(self._store, presented_key()) or self._key_of_ticket()
        if key is None:
            raise self._turned_away()
        g.key = key
        g.log["tenant"] = key.tenant
        if not self._limiter.limiter.hit(self._per_tenant, "tenant", key.tenant):
            raise _limited("requests of this tenant", self._config.rate_limit)

    def _key_of_ticket(self) -> Key | None:
        """Where a browser cannot send a header, a ticket in the URL stands for the key it was made with."""
        purpose = _PURPOSES.get(request.endpoint or "")
        ticket = request.args.get("ticket")
        if purpose is None or ticket is None:
            return None
        wanted = request.view_args or {}
        return self._tickets.redeem(ticket, purpose, wanted["session_id"], wanted.get("execution_id", ""))

    def _turned_away(self) -> SandboxError:
        """A right key is never refused for the wrong ones that others sent from the same address."""
        if self._limiter.limiter.hit(self._per_failure, "failures", client_address()):
            return Unauthorized()
        return _limited("failed attempts from this address", self._config.failure_limit)

    def _check_host(self) -> None:
        """Against DNS rebinding: a page in a browser reaches 127.0.0.1 only under a name of its own."""
        host = _HOST.fullmatch(request.host.lower())
        if "*" not in self._config.hosts and (host is None or host[1] not in self._config.hosts):
            raise Refusal(
                "wrong_host", "This host name is not served here. The operator can add it to SANDBOX_HOSTS."
            )


def _limited(what: str, limit: str) -> Refusal:
    return Refusal("rate_limited", f"Too many {what}: the limit is {limit}.", limit=limit, retry_after=5)
