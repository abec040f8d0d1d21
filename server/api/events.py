"""An execution as it happens: Server-Sent Events, or a JSON object a line.

`seq` is a position in the log: how many bytes were printed up to and including the event. Readers may see the
same bytes cut differently; the bytes behind a position are always the same, so any of them can be asked for.
"""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from flask import Response, g, request

from server import errors, results
from server.api.hangup import ClientGone, ServerStops, interruptible, noticed
from server.api.problems import problem_as_json
from server.api.turns import Turns
from server.api.wiring import key, parts
from server.executions import Executions
from server.guest_answers import Batch, Told
from server.guest_client import refusal_of
from server.times import timestamp

_SSE = "text/event-stream"
_NDJSON = "application/x-ndjson"

Event = dict[str, Any]


@dataclass(frozen=True)
class Following:
    """Whose events, from where on (None: from the start), and whether the command ends with its reader."""

    tenant: str
    session_id: str
    told: Told
    after: int | None
    kill_on_disconnect: bool = False

    @property
    def execution(self) -> str:
        return self.told.execution.id

    @property
    def place(self) -> tuple[str, str, str]:
        return self.tenant, self.session_id, self.execution


@dataclass(frozen=True)
class Caller:
    """Who follows: the connection, whether its key was revoked meanwhile, and the request's id."""

    peer: socket.socket | None
    is_revoked: Callable[[], bool]
    request_id: str


def last_event_id() -> int | None:
    """What a browser says it had last, when it comes back by itself."""
    said = request.headers.get("Last-Event-ID", "")
    return int(said) if said.isdecimal() and len(said) < 20 else None


def response(following: Following, leave: Callable[[], None] | None = None) -> Response:
    """The stream; `leave` if it is counted already."""
    leave = leave or parts().executions.enter_stream(following.tenant, following.session_id)
    accepted = request.accept_mimetypes.best_match([_SSE, _NDJSON], _SSE)
    # All that belongs to the request is read now: the stream outlives it.
    caller = Caller(
        request.environ.get("gunicorn.socket"), partial(parts().is_revoked, key().id), g.request_id
    )
    encode = _line if accepted == _NDJSON else _message
    stream = Stream(parts().executions, following, caller, parts().turns, encode)
    answer = Response(stream.chunks(), mimetype=accepted)
    answer.headers["X-Accel-Buffering"] = "no"  # for a proxy that is not configured for streams
    answer.call_on_close(leave)
    return answer


class Stream:
    """What one caller gets: a chunk for each batch of the log, however many events are in it."""

    def __init__(
        self,
        executions: Executions,
        following: Following,
        caller: Caller,
        turns: Turns,
        encode: Callable[[Event], str],
    ) -> None:
        self._executions = executions
        self._following = following
        self._caller = caller
        self._turns = turns
        self._encode = encode
        self._seq = following.after or 0
        self._over = False

    def chunks(self) -> Iterator[bytes]:
        """While the caller is there and may see them."""
        try:
            with interruptible(), noticed(self._caller.peer):
                for chunk in self._follow():
                    yield chunk
                    if self._caller.is_revoked():
                        yield self._written(self._problem(errors.Unauthorized()))
                        return
        except ClientGone:
            return
        except ServerStops:
            self._over = True  # not for its reader, who will be back, but nothing was given up
            return
        finally:
            if self._following.kill_on_disconnect and not self._over:
                self._executions.cancel(*self._following.place)

    def _follow(self) -> Iterator[bytes]:
        if self._following.after is None:
            yield self._written(_start(self._following))
        try:
            for batch in self._executions.follow(*self._following.place, self._seq):
                with self._turns.taken(self._following.tenant, batch.end - batch.begin):
                    chunk = self._written(*_of_batch(self._seq, batch))
                self._seq = max(self._seq, batch.end)
                yield chunk
            told = self._executions.tell(*self._following.place)
            last = self._written(_end(self._seq + 1, self._following, told))
        except errors.SandboxError as exc:
            last = self._written(self._problem(exc))
        self._over = True
        yield last

    def _written(self, *events: Event) -> bytes:
        return "".join(map(self._encode, events)).encode()

    def _problem(self, error: errors.SandboxError) -> Event:
        problem = problem_as_json(error, self._caller.request_id)
        return {"event": "problem", "seq": self._seq, "problem": problem}


def _message(event: Event) -> str:
    return f"id: {event['seq']}\nevent: {event['event']}\ndata: {_json(event)}\n\n"


def _line(event: Event) -> str:
    return _json(event) + "\n"


def _json(event: Event) -> str:
    """One line for everybody: some libraries take these three for the end of one."""
    text = json.dumps(event, ensure_ascii=False)
    return text.replace("\x85", "\\u0085").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _start(following: Following) -> Event:
    execution = following.told.execution
    return {
        "event": "start",
        "seq": 0,
        "execution_id": execution.id,
        "session_id": following.session_id,
        "started_at": timestamp(execution.started_at),
        "pty": execution.screen is not None,
    }


def _of_batch(seq: int, batch: Batch) -> Iterator[Event]:
    if batch.begin > seq:
        yield {"event": "gap", "seq": batch.begin, "from": seq, "to": batch.begin}
    if not batch.pieces and not batch.ended:
        yield {"event": "keepalive", "seq": max(seq, batch.begin)}
    seq = batch.begin
    for stream, data in batch.pieces:
        seq += len(data)
        yield {"event": stream, "seq": seq, **_text(data)}


def _text(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"text": data.decode("utf-8", "replace"), "base64": base64.b64encode(data).decode()}


def _end(seq: int, following: Following, told: Told) -> Event:
    if told.refusal is not None:
        raise refusal_of(told.refusal, 0)
    answer = told.answer
    result = None if answer is None else results.facts(answer, following.session_id, following.execution)
    return {"event": "end", "seq": seq, "result": result}
