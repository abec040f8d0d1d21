"""Requests to one server, sent again where that is safe. What is sent and read is the same for every wire."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

from .errors import SandboxError
from .http import checked, content
from .outgoing import PIECE, Outgoing, in_pieces
from .retries import Patience, Retries, Tries
from .wire import Answer, Incoming, Request, Wire

# Compression would hold events back until a block is full.
_STREAM = {"Accept": "application/x-ndjson", "Accept-Encoding": "identity"}
_FETCH = {"Accept": "*/*", "Accept-Encoding": "identity"}  # bytes are counted and resumed as they lie there


@dataclass(frozen=True)
class Ask:
    """What is asked of the server. `work_time` is how long it may work before the read timeout starts.

    `content` is a body that is not JSON. `safe`: sent twice, it does what it does once.
    """

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    query: Mapping[str, Any] | None = None
    idempotency_key: str | None = None
    work_time: float = 0.0
    content: bytes | Outgoing | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    safe: bool = False

    @property
    def repeatable(self) -> bool:
        """Whether nothing can happen twice when it is sent twice."""
        return self.safe or self.idempotency_key is not None or self.method in {"GET", "DELETE"}

    @property
    def spent(self) -> bool:
        """Whether its body came from where it cannot be read again."""
        return isinstance(self.content, Outgoing) and self.content.spent

    def under(self, prefix: str) -> Ask:
        return replace(self, path=prefix + self.path)

    def request(self, timeout: float, headers: Mapping[str, str], piece: int | None = None) -> Request:
        headers = {**headers, **self.headers}
        content = self.content
        if self.body is not None:
            content = json.dumps(self.body, allow_nan=False).encode()
            headers["Content-Type"] = "application/json"
        if self.idempotency_key is not None:
            headers["Idempotency-Key"] = self.idempotency_key
        path = f"{self.path}?{urlencode(self.query)}" if self.query else self.path
        body = in_pieces(content) if isinstance(content, bytes) else content
        return Request(self.method, path, timeout, body, headers, piece)


class Connection:
    """A wire, and the patience to use it."""

    def __init__(self, wire: Wire, patience: Patience) -> None:
        self.wire = wire
        self.patience = patience

    async def ask(self, ask: Ask, tries: Tries | None = None) -> dict[str, Any]:
        """The JSON that the server answers with."""
        return content(await self.answer(ask, tries))

    async def answer(self, ask: Ask, tries: Tries | None = None) -> Answer:
        """The server's answer, if it is a good one."""
        request = ask.request(ask.work_time + self.patience.read_timeout, {})
        tries = tries or Retries(self.patience, ask.repeatable)
        while True:
            try:
                return checked(await self.wire.send(request))
            except SandboxError as error:
                pause = tries.pause(error)
                if pause is None or ask.spent:
                    raise
            await self.wire.sleep(pause)

    async def stream(self, ask: Ask) -> Incoming:
        """A stream of events, tried once. It must be closed."""
        return await self._open(ask.request(self.patience.silence, _STREAM))

    async def fetch(self, ask: Ask) -> Incoming:
        """An answer of bytes, tried once. It must be closed."""
        return await self._open(ask.request(ask.work_time + self.patience.read_timeout, _FETCH, PIECE))

    async def _open(self, request: Request) -> Incoming:
        incoming = await self.wire.open(request)
        if incoming.status >= 300:
            try:
                checked(await incoming.whole())
            finally:
                await incoming.close()
        return incoming
