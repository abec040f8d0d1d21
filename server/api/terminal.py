"""/v1/sessions/{id}/terminal: a shell on a screen, over a WebSocket.

A terminal is an execution with a name. Its log is the screen's history: whoever joins sees the end of it,
whoever comes back with a position misses nothing, and any number may watch and type.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from flask import Blueprint, Response, g, request

from server import errors
from server.api import models, parse
from server.api.problems import problem_as_json
from server.api.websocket import Closed, Message, WebSocket
from server.api.wiring import key, named, parts, tenant
from server.executions import Executions
from server.guest_answers import Told

bp = Blueprint("terminal", __name__)
_HISTORY = 64 << 10
_LOOK_SECONDS = 5.0  # how long a revoked key's terminals may live on
_PING_SECONDS = 25.0
_SILENCE_SECONDS = 60.0
_NORMAL, _POLICY, _TROUBLE = 1000, 1008, 1011

_log = logging.getLogger("sandbox.web")


@bp.get("/v1/sessions/<session_id>/terminal")
@bp.get("/v1/sessions/<session_id>/terminal", websocket=True)
def open_terminal(session_id: str) -> Response:
    asked = parse.query_of(models.OpenTerminal, request.args.to_dict())
    _check_origin()
    executions = parts().executions
    leave = executions.enter_stream(tenant())
    try:
        parts().sessions.get(tenant(), named(session_id))
        screen = (asked.cols, asked.rows)
        told = executions.open_terminal(tenant(), session_id, asked.name, screen)
        viewer = Viewer(WebSocket(request.environ), tenant(), session_id, told.execution.id, g.request_id)
        viewer.greet(executions, told, asked)
        revoked = partial(parts().is_revoked, key().id)
        viewer.serve(executions, revoked, parts().config.terminal_idle)
    finally:
        leave()
    return _HandedOver()


class _HandedOver(Response):
    """The connection is a WebSocket's, and over: gunicorn has nothing left to send."""

    def __call__(self, *_: Any) -> Iterable[bytes]:
        raise StopIteration


def _check_origin() -> None:
    """A browser says which page asks. Other clients send no origin; theirs is the key or the ticket."""
    origin = request.headers.get("Origin")
    ours = {f"http://{request.host}".lower(), f"https://{request.host}".lower(), *parts().config.origins}
    if origin is not None and origin.lower() not in ours:
        raise errors.ForbiddenOrigin


@dataclass
class Viewer:
    """One who watches and types."""

    socket: WebSocket
    tenant: str
    session: str
    execution: str
    request_id: str
    seq: int = 0
    active: float = 0.0

    def greet(self, executions: Executions, told: Told, asked: models.OpenTerminal) -> None:
        """Say where the bytes that follow begin. Who knows no position gets the last ones, by whole lines."""
        self.seq = total = told.execution.total
        if asked.after is not None and asked.after <= total:
            self.seq = asked.after
        elif total:
            self.seq = max(0, total - _HISTORY)
            if self.seq:
                batch = executions.read(self.tenant, self.session, self.execution, self.seq)
                shown = b"".join(data for _, data in batch.pieces)
                self.seq = batch.begin + shown.find(b"\n") + 1
        if not told.new:
            executions.resize(self.tenant, self.session, self.execution, asked.cols, asked.rows)
        self._say(
            type="ready",
            seq=self.seq,
            execution_id=self.execution,
            cols=asked.cols,
            rows=asked.rows,
            new=told.new,
        )

    def serve(self, executions: Executions, revoked: Callable[[], bool], idle: float) -> None:
        """Until one side ends it: what is typed in this thread, what is printed in another."""
        self.active = time.monotonic()
        printer = threading.Thread(target=self._ended, args=(lambda: self._print(executions),), daemon=True)
        printer.start()
        self._ended(lambda: self._listen(executions, revoked, idle))
        printer.join(timeout=1)

    def _ended(self, work: Callable[[], tuple[int, str]]) -> None:
        """Whatever ends the one side is told to the peer, and ends the other side too."""
        try:
            self.socket.close(*work())
        except Closed:
            self.socket.close(_NORMAL, "")
        except errors.SandboxError as exc:
            self._fail(exc)

    def _fail(self, error: errors.SandboxError) -> None:
        try:
            self._say(type="problem", problem=problem_as_json(error, self.request_id))
        except Closed:
            _log.debug("a viewer had gone before it could be told why")
        self.socket.close(_POLICY if isinstance(error, errors.Unauthorized) else _TROUBLE, error.code)

    def _print(self, executions: Executions) -> tuple[int, str]:
        for batch in executions.follow(self.tenant, self.session, self.execution, self.seq):
            for _, data in batch.pieces:
                self.active = time.monotonic()
                self.socket.send(data)
        answer = executions.tell(self.tenant, self.session, self.execution, 0).answer
        self._say(type="exit", exit_code=None if answer is None else answer.exit_code)
        return _NORMAL, "exit"

    def _listen(self, executions: Executions, revoked: Callable[[], bool], idle: float) -> tuple[int, str]:
        next_ping = time.monotonic() + _PING_SECONDS
        while True:
            message = self.socket.receive(_LOOK_SECONDS)
            now = time.monotonic()
            if revoked():
                raise errors.Unauthorized
            if message is not None:
                self.active = now
                self._heed_gently(executions, message)
            if now - self.active > idle:
                return _NORMAL, "idle"
            if now - self.socket.last_heard > _SILENCE_SECONDS:
                return _TROUBLE, "no answer to pings"
            if now >= next_ping:
                next_ping = now + _PING_SECONDS
                self.socket.ping()

    def _heed_gently(self, executions: Executions, message: Message) -> None:
        """What cannot be done is told; it is no reason to hang up."""
        try:
            self._heed(executions, message)
        except (errors.Invalid, errors.StdinFull) as exc:
            self._say(type="problem", problem=problem_as_json(exc, self.request_id))

    def _heed(self, executions: Executions, message: Message) -> None:
        if isinstance(message, bytes):
            executions.input(self.tenant, self.session, self.execution, message, close=False)
            return
        asked = parse.text_of(models.TerminalMessage, message)
        if asked.type == "resize":
            executions.resize(self.tenant, self.session, self.execution, asked.cols, asked.rows)
        elif asked.type == "input":
            executions.input(self.tenant, self.session, self.execution, asked.data.encode(), close=False)
        else:
            self._say(type="pong")

    def _say(self, **fields: object) -> None:
        self.socket.send(json.dumps(fields))
