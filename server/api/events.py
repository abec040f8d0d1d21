"""An execution as it happens: Server-Sent Events, or a JSON object a line.

`seq` is a position in the log: how many bytes were printed up to and including the event. Readers may see the
same bytes cut differently; the bytes behind a position are always the same, so any of them can be asked for.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flask import Response, request

from server import errors, results
from server.api import streaming
from server.api.hangup import ClientGone, ServerStops
from server.api.streaming import Caller, Event
from server.api.turns import Turns
from server.api.wiring import parts
from server.executions import Executions
from server.guest_answers import Batch, Told
from server.guest_refusals import refusal_of
from server.times import timestamp


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


def last_event_id() -> int | None:
    """What a browser says it had last, when it comes back by itself."""
    said = request.headers.get("Last-Event-ID", "")
    return int(said) if said.isdecimal() and len(said) < 20 else None


def response(following: Following, leave: Callable[[], None] | None = None) -> Response:
    """The stream; `leave` if it is counted already."""
    leave = leave or parts().executions.enter_stream(following.tenant, following.session_id)
    caller = streaming.caller()
    stream = Stream(parts().executions, following, caller, parts().turns)
    answer = streaming.response(caller, stream.chunks())
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
    ) -> None:
        self._executions = executions
        self._following = following
        self._caller = caller
        self._turns = turns
        self._seq = following.after or 0
        self._over = False

    def chunks(self) -> Iterator[bytes]:
        """While the caller is there and may see them."""
        try:
            yield from self._caller.delivered(self._follow(), self._problem)
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
            yield self._caller.written(_start(self._following))
        try:
            for batch in self._executions.follow(*self._following.place, self._seq):
                with self._turns.taken(self._following.tenant, batch.end - batch.begin):
                    chunk = self._caller.written(*_of_batch(self._seq, batch))
                self._seq = max(self._seq, batch.end)
                yield chunk
            told = self._executions.tell(*self._following.place)
            last = self._caller.written(_end(self._seq + 1, self._following, told))
        except errors.SandboxError as exc:
            last = self._problem(exc)
        self._over = True
        yield last

    def _problem(self, error: errors.SandboxError) -> bytes:
        problem = self._caller.problem(error)
        return self._caller.written({"event": "problem", "seq": self._seq, "problem": problem})


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
