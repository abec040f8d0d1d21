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
from server.api import acts, models, origins, parse, traffic
from server.api.hangup import Shutdown, interruptible
from server.api.problems import problem_as_json
from server.api.replay import without_queries
from server.api.websocket import Closed, Message, WebSocket
from server.api.wiring import key, named, parts, tenant
from server.executions import Executions
from server.guest_answers import Told

bp = Blueprint("terminal", __name__)
_HISTORY = 64 << 10
_LOOK_SECONDS = 1.0  # how long a revoked key's terminals may live on
_PING_SECONDS = 25.0
_SILENCE_SECONDS = 60.0
_LINGER_SECONDS = 2.0
_SWITCHED = 101
_NORMAL, _POLICY, _TROUBLE, _RESTART = 1000, 1008, 1011, 1012

_log = logging.getLogger("sandbox.web")


@bp.get("/v1/sessions/<session_id>/terminal")
@bp.get("/v1/sessions/<session_id>/terminal", websocket=True)
def open_terminal(session_id: str) -> Response:
    asked = parse.query_of(models.OpenTerminal, request.args.to_dict())
    origins.check(parts().config)
    meters = parts().meters
    socket = WebSocket(request.environ, partial(parts().turns.taken, tenant()), meters.moved)
    executions = parts().executions
    leave = executions.enter_stream(tenant(), named(session_id))
    try:
        told = executions.open_terminal(tenant(), session_id, asked.name, _screen(asked))
        meters.started("terminal")
        acts.note(execution_id=told.execution.id)
        acts.begun(_SWITCHED)
        place = (executions, tenant(), session_id, told.execution.id)
        viewer = Viewer(socket, traffic.counting(), *place, g.request_id)
        viewer.serve(told, asked, partial(parts().is_revoked, key().id), parts().config.terminal_idle)
    finally:
        leave()
    return _HandedOver()


def _screen(asked: models.OpenTerminal) -> tuple[int, int] | None:
    return None if asked.cols is None or asked.rows is None else (asked.cols, asked.rows)


class _HandedOver(Response):
    """The connection is a WebSocket's, and over: gunicorn has nothing left to send."""

    def __call__(self, *_: Any) -> Iterable[bytes]:
        raise StopIteration


@dataclass
class Viewer:
    """One who watches and types."""

    socket: WebSocket
    count: traffic.Count
    executions: Executions
    tenant: str
    session: str
    execution: str
    request_id: str
    seq: int = 0
    history_until: int = 0
    active: float = 0.0

    def serve(self, told: Told, asked: models.OpenTerminal, revoked: Callable[[], bool], idle: float) -> None:
        """Until one side ends it: what is typed in this thread, what is printed in another."""
        printer = threading.Thread(target=self._ended, args=(self._print,), daemon=True)

        def listen() -> tuple[int, str]:
            self.socket.accept()
            self._greet(told, asked)
            printer.start()
            return self._listen(revoked, idle)

        try:
            with interruptible():
                self._ended(listen)
        except Shutdown:
            self.socket.close(_RESTART, "restart")
        self.socket.linger(_LINGER_SECONDS)

    def _greet(self, told: Told, asked: models.OpenTerminal) -> None:
        """Say where the bytes that follow begin. Who knows no position gets the last ones, by whole lines."""
        total = told.execution.total
        same = asked.execution_id in (None, self.execution)  # a position counts in the shell it was told of
        known = asked.after is not None and asked.after <= total and same
        self.seq = asked.after if asked.after is not None and known else max(0, total - _HISTORY)
        if self.seq < total:
            batch = self.executions.read(self.tenant, self.session, self.execution, self.seq)
            shown = b"".join(data for _, data in batch.pieces)
            cut = not known and batch.begin > 0
            self.seq = batch.begin + (shown.find(b"\n") + 1 if cut else 0)
        self.history_until = 0 if known else total
        screen = _screen(asked) or told.execution.screen or (0, 0)
        if screen != told.execution.screen:
            self._resize(*screen)
        size = {"cols": screen[0], "rows": screen[1]}
        self._say(type="ready", seq=self.seq, execution_id=self.execution, **size, new=told.new)
        self.active = time.monotonic()

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

    def _print(self) -> tuple[int, str]:
        for batch in self.executions.follow(self.tenant, self.session, self.execution, self.seq):
            if not self.socket.is_open:
                raise Closed  # nothing may be printed any more that would tell
            if batch.begin > self.seq:
                self._say(type="gap", **{"from": self.seq, "to": batch.begin})
            shown = b"".join(data for _, data in batch.pieces)
            old = max(0, self.history_until - batch.begin)
            if shown:
                self.active = time.monotonic()
                self.socket.send(without_queries(shown[:old]) + shown[old:])
                self.count(0, len(shown))
            self.seq = max(self.seq, batch.end)
        answer = self.executions.tell(self.tenant, self.session, self.execution).answer
        self._say(type="exit", exit_code=None if answer is None else answer.exit_code)
        return _NORMAL, "exit"

    def _listen(self, revoked: Callable[[], bool], idle: float) -> tuple[int, str]:
        next_ping = time.monotonic() + _PING_SECONDS
        while True:
            message = self.socket.receive(_LOOK_SECONDS)
            now = time.monotonic()
            if revoked():
                raise errors.Unauthorized
            if message is not None:
                self.active = now
                self._heed_gently(message)
                time.sleep(0)  # others have their turn, however much there is to heed
            if now - self.active > idle:
                return _NORMAL, "idle"
            if now - self.socket.last_heard > _SILENCE_SECONDS:
                return _TROUBLE, "no answer to pings"
            if now >= next_ping:
                next_ping = now + _PING_SECONDS
                self.socket.ping()

    def _heed_gently(self, message: Message) -> None:
        """What cannot be done is told; it is no reason to hang up. The printer tells the shell's end."""
        try:
            self._heed(message)
        except (errors.ExecutionEnded, errors.NoStdin):
            return
        except (errors.Invalid, errors.StdinFull) as exc:
            self._say(type="problem", problem=problem_as_json(exc, self.request_id))

    def _heed(self, message: Message) -> None:
        if isinstance(message, bytes):
            self._type(message)
            return
        asked = parse.text_of(models.TerminalMessage, message)
        if asked.type == "resize":
            self._resize(asked.cols, asked.rows)
        elif asked.type == "input":
            self._type(asked.data.encode())
        else:
            self._say(type="pong")

    def _type(self, keys: bytes) -> None:
        self.count(len(keys), 0)
        self.executions.input(self.tenant, self.session, self.execution, keys, close=False)

    def _resize(self, cols: int, rows: int) -> None:
        try:
            self.executions.resize(self.tenant, self.session, self.execution, cols, rows)
        except (errors.NoTerminal, errors.ExecutionEnded):
            return  # it has just ended, or its program has let go of it

    def _say(self, **fields: object) -> None:
        self.socket.send(json.dumps(fields))
