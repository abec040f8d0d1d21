"""Events as they happen, for whoever follows: Server-Sent Events, or a JSON object a line.

What has events writes them with `Caller.written`, and gives the chunks to `response`.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from flask import Response, g, request

from server import errors
from server.api.hangup import interruptible, noticed
from server.api.problems import problem_as_json
from server.api.transfers import overseen, still_authorized

_SSE = "text/event-stream"
_NDJSON = "application/x-ndjson"

Event = dict[str, Any]


@dataclass(frozen=True)
class Caller:
    """Who follows: the connection, whether its key is still good, the request's id, and its format.

    All that belongs to the request is read when this is made: the stream outlives it.
    """

    peer: socket.socket | None
    check: Callable[[], None]
    request_id: str
    mimetype: str

    def written(self, *events: Event) -> bytes:
        encode = _line if self.mimetype == _NDJSON else _message
        return "".join(map(encode, events)).encode()

    def problem(self, error: errors.SandboxError) -> dict[str, Any]:
        return problem_as_json(error, self.request_id)

    def delivered(
        self, chunks: Iterator[bytes], refusal: Callable[[errors.SandboxError], bytes]
    ) -> Iterator[bytes]:
        """While the caller is there and may see them. Raises ClientGone or ServerStops else."""
        with interruptible(), noticed(self.peer):
            try:
                with overseen(self.check):
                    yield from chunks
            except errors.Unauthorized as exc:
                yield refusal(exc)


def caller() -> Caller:
    """Of the request that is being answered."""
    return Caller(
        request.environ.get("gunicorn.socket"),
        still_authorized(),
        g.request_id,
        request.accept_mimetypes.best_match([_SSE, _NDJSON], _SSE),
    )


def response(whose: Caller, chunks: Iterator[bytes]) -> Response:
    answer = Response(chunks, mimetype=whose.mimetype)
    answer.headers["X-Accel-Buffering"] = "no"  # for a proxy that is not configured for streams
    return answer


def _message(event: Event) -> str:
    name = event["event"] if "event" in event else event["type"]
    return f"id: {event['seq']}\nevent: {name}\ndata: {_json(event)}\n\n"


def _line(event: Event) -> str:
    return _json(event) + "\n"


def _json(event: Event) -> str:
    """One line for everybody: some libraries take these three for the end of one."""
    text = json.dumps(event, ensure_ascii=False)
    return text.replace("\x85", "\\u0085").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
