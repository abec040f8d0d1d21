"""POST /run: one command in a fresh sandbox that is gone afterwards, however it ends.

With an Idempotency-Key its answer is written down before the sandbox goes, and given again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from flask import Blueprint, Response, g

from server.api import acts, parse, run_models, scopes, session_models, telling
from server.api.executions import caller_present, streamed
from server.api.limits import single_command_of, single_wish_of
from server.api.wiring import parts, tenant
from server.errors import Limited, SessionEnded
from server.guest_answers import Told
from server.guest_client import Command
from server.names import Idempotency, name_for
from server.runs import Run
from server.sessions import Wish

bp = Blueprint("run", __name__)
_TRIES = 3


@dataclass(frozen=True)
class _Order:
    """All that is kept of a body while it runs."""

    wish: Wish
    files: list[str]
    command: Command
    idempotency: Idempotency | None
    stream: bool


@bp.post("/run")
def run() -> Response:
    order, given = _ordered()
    if given is not None:
        acts.note(repeated=True)
        return telling.text(given)
    for _ in range(_TRIES - 1):
        try:
            return _carried_out(order)
        except SessionEnded:
            if order.idempotency is None:
                raise
            if (given := _given_before(order.idempotency)) is not None:
                acts.note(repeated=True)
                return telling.text(given)
            parts().spending.free_unspent(tenant(), order.idempotency)
    return _carried_out(order)


def _ordered() -> tuple[_Order, str | None]:
    """What is asked for, and the answer if it was given before: it stands, whatever else has changed."""
    with parts().large_bodies.place():
        asked = parse.body_of(run_models.RunOnce)
        command = single_command_of(asked, parts().config)
    if session_models.names_uploads(asked.files, asked.datasets):
        scopes.need("files")
    idempotency, files = parse.idempotency(), asked.files or []
    given = None if idempotency is None else _given_before(idempotency)
    wish = single_wish_of(asked, parts().config)
    if given is None and not parts().spending.is_under_way(tenant(), idempotency):
        parts().placing.wanted(tenant(), files)  # before anything is opened
    return _Order(wish, files, command, idempotency, asked.stream), given


def _given_before(idempotency: Idempotency) -> str | None:
    return parts().runs.given_before(tenant(), idempotency)


def _carried_out(order: _Order) -> Response:
    opened = parts().sessions.open(tenant(), order.wish, order.idempotency)
    session, owner, placing = opened.session, tenant(), parts().placing
    g.log["session"] = session.id
    key = None if order.stream else order.idempotency  # a stream is not shared

    def place() -> None:
        if order.files:
            placing.place(session, placing.wanted(owner, order.files), close=False)

    one = Run(opened, place, order.command, name_for(session.id, None, "", key), key)
    acts.note(execution_id=one.name.id)
    return _streamed(one) if order.stream else _answered(one)


def _streamed(one: Run) -> Response:
    def start() -> Told:
        with caller_present():
            return parts().runs.start(one)

    try:
        return streamed(one.session.id, start, kill_on_disconnect=True)
    except Limited as exc:  # it may be one stream too many, and was not started
        parts().runs.failed(one, exc)
        raise


def _answered(one: Run) -> Response:
    began = time.monotonic()
    with caller_present():
        answer = parts().runs.run(one)
    parts().meters.executed(time.monotonic() - began, answer)
    acts.note(exit_code=answer.exit_code)
    return telling.result(answer, one.session.id, one.name.id)
