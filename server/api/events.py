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
    encode = _line if accepted == _NDJSON else _message
    # All that belongs to the request is read now: the stream outlives it.
    caller = Caller(
        request.environ.get("gunicorn.socket"), partial(parts().is_revoked, key().id), g.request_id
    )
    answer = Response(_encoded(_watched(parts().executions, following, caller), encode), mimetype=accepted)
    answer.headers["X-Accel-Buffering"] = "no"  # for a proxy that is not configured for streams
    answer.call_on_close(leave)
    return answer


def _message(event: Event) -> str:
    return f"id: {event['seq']}\nevent: {event['event']}\ndata: {json.dumps(event)}\n\n"


def _line(event: Event) -> str:
    return json.dumps(event) + "\n"


def _encoded(events: Iterator[Event], encode: Callable[[Event], str]) -> Iterator[bytes]:
    for event in events:
        yield encode(event).encode()


def _watched(executions: Executions, following: Following, caller: Caller) -> Iterator[Event]:
    """The events, while the caller is there and may see them."""
    ended = False
    try:
        with interruptible(), noticed(caller.peer):
            for event in _events(executions, following, caller.request_id):
                yield event
                ended = event["event"] in ("end", "problem")
                if caller.is_revoked():
                    yield _problem(event["seq"], errors.Unauthorized(), caller.request_id)
                    return
    except ClientGone:
        return
    except ServerStops:
        ended = True  # not for its reader, who will be back, but nothing was given up
        return
    finally:
        if following.kill_on_disconnect and not ended:
            executions.cancel(following.tenant, following.session_id, following.execution)


def _events(executions: Executions, following: Following, request_id: str) -> Iterator[Event]:
    seq = following.after or 0
    if following.after is None:
        yield _start(following)
    try:
        for batch in executions.follow(following.tenant, following.session_id, following.execution, seq):
            yield from _of_batch(seq, batch)
            seq = max(seq, batch.end)
            if not batch.pieces and not batch.ended:
                yield {"event": "keepalive", "seq": seq}
        told = executions.tell(following.tenant, following.session_id, following.execution)
        yield _end(seq + 1, following, told)
    except errors.SandboxError as exc:
        yield _problem(seq, exc, request_id)


def _start(following: Following) -> Event:
    execution = following.told.execution
    return {
        "event": "start",
        "seq": 0,
        "execution_id": execution.id,
        "session_id": following.session_id,
        "started_at": timestamp(execution.started_at),
        "pty": execution.pty,
    }


def _of_batch(seq: int, batch: Batch) -> Iterator[Event]:
    if batch.begin > seq:
        yield {"event": "gap", "seq": batch.begin, "from": seq, "to": batch.begin}
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


def _problem(seq: int, error: errors.SandboxError, request_id: str) -> Event:
    return {"event": "problem", "seq": seq, "problem": problem_as_json(error, request_id)}
