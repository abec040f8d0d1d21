"""Bytes that a tenant sends and receives, counted as they pass: bodies, answers and streams."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from flask import Response, g, request

from server import errors
from server.api.wiring import parts

Count = Callable[[int, int], None]


class _Counted:
    """A body that counts what is read of it."""

    def __init__(self, body: Any) -> None:
        self._body = body
        self.received = 0

    def read(self, *size: int) -> bytes:
        return self._noted(self._body.read(*size))

    def readline(self, *size: int) -> bytes:
        return self._noted(self._body.readline(*size))

    def readlines(self, *size: int) -> list[bytes]:
        return [self._noted(line) for line in self._body.readlines(*size)]

    def __iter__(self) -> Iterator[bytes]:
        return map(self._noted, self._body)

    def _noted(self, data: bytes) -> bytes:
        self.received += len(data)
        return data


def count_body() -> None:
    environ = request.environ
    if environ.get("CONTENT_LENGTH") or "HTTP_TRANSFER_ENCODING" in environ:
        environ["wsgi.input"] = g.body = _Counted(environ["wsgi.input"])


def count_answer(response: Response) -> None:
    """At the end of a request. Streams are counted piece by piece, bodies as far as they were read."""
    if "key" not in g or not g.key.tenant:  # the operator's own key owns nothing
        return
    received = g.body.received if "body" in g else 0
    size = None if response.is_streamed else response.calculate_content_length()
    count = counting()
    if size is None:
        response.response = _pieces(response.response, count)
    with contextlib.suppress(errors.StoreUnavailable):  # what was asked for is done
        count(received, size or 0)


def counting() -> Count:
    """For whoever this request is of; good beyond it."""
    user = parts().sessions.user_of(g.key.tenant, g.log.get("session"))
    return partial(parts().limits.usage.add, g.key.tenant, user)


def _pieces(pieces: Iterable[Any], count: Count) -> Iterator[Any]:
    try:
        for piece in pieces:
            yield piece
            with contextlib.suppress(errors.StoreUnavailable):
                count(0, len(piece))
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()
