"""/v1/sessions/{id}/files/watch: what happens in a directory, told as it happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

from flask import Blueprint, Response

from server import errors
from server.api import bulk_models as models
from server.api import streaming
from server.api.file_names import path_as_json, query_of
from server.api.hangup import ClientGone, ServerStops
from server.api.streaming import Caller, Event
from server.api.turns import Turns
from server.api.wiring import named, parts, tenant
from server.bulk_answers import Change
from server.executions import KEEPALIVE
from server.guest_bulk_client import Watching

bp = Blueprint("watching", __name__)


@bp.get("/v1/sessions/<session_id>/files/watch")
def watch(session_id: str) -> Response:
    asked, path = query_of(models.Watch)
    bulk, whose, caller = parts().bulk, (tenant(), named(session_id)), streaming.caller()
    watching, leave = parts().files.begin(
        *whose, lambda _, guest: bulk.watch(guest, path, asked.recursive, KEEPALIVE)
    )
    stream = Stream(watching, parts().files.going_on(*whose), caller, parts().turns, whose[0])
    response = streaming.response(caller, stream.chunks())
    response.call_on_close(watching.close)
    response.call_on_close(leave)
    return response


class Stream:
    """What one caller gets: a chunk for each batch of changes. `seq` counts them."""

    def __init__(
        self,
        watching: Watching,
        going_on: AbstractContextManager[None],
        caller: Caller,
        turns: Turns,
        tenant: str,
    ) -> None:
        self._watching = watching
        self._going_on = going_on
        self._caller = caller
        self._turns = turns
        self._tenant = tenant
        self._seq = 0

    def chunks(self) -> Iterator[bytes]:
        try:
            yield from self._caller.delivered(self._follow(), self._problem)
        except (ClientGone, ServerStops):
            return

    def _follow(self) -> Iterator[bytes]:
        yield self._caller.written({"type": "start", "seq": 0, **path_as_json(self._watching.path)})
        try:
            with self._going_on:
                for batch in self._watching.batches():
                    with self._turns.taken(self._tenant, batch.size):
                        chunk = self._caller.written(*self._events(batch.read()))
                    yield chunk
        except errors.SandboxError as exc:
            yield self._problem(exc)

    def _events(self, batch: list[Change]) -> Iterator[Event]:
        if not batch:
            yield {"type": "keepalive", "seq": self._seq}
        for change in batch:
            self._seq += 1
            yield {"type": change.kind, "seq": self._seq, **_as_json(change)}

    def _problem(self, error: errors.SandboxError) -> bytes:
        problem = self._caller.problem(error)
        return self._caller.written({"type": "problem", "seq": self._seq, "problem": problem})


def _as_json(change: Change) -> dict[str, object]:
    told: dict[str, object] = {**path_as_json(change.path), "directory": change.directory}
    if change.old is not None:
        told |= {f"old_{name}": value for name, value in path_as_json(change.old).items()}
    return told
