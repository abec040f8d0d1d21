"""gunicorn's gevent worker with our own habits: no wait without an end, no HTML, one kind of log line.

Reading a request's head is bounded by `keepalive` already; here every further read and write is too. What
gunicorn itself refuses, before Flask sees it, is answered as a problem like everything else.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
from typing import Any

import gevent
from gunicorn import util
from gunicorn.glogging import Logger
from gunicorn.http import errors
from gunicorn.http.unreader import SocketUnreader
from gunicorn.workers.base_async import AsyncWorker
from gunicorn.workers.ggevent import GeventWorker

from server.api.hangup import Stop, interrupt
from server.api.problems import HEADERS, STATUSES, problem_body
from server.config import load
from server.logs import configure_logging

_PEER_SECONDS = 30.0
# The kernel would let it grow to megabytes for each peer that takes nothing, all of it the host's memory.
_SEND_BUFFER = 128 << 10
_DISCARD_BYTES = 128 << 10
_DISCARD_SECONDS = 2.0


# Larger ones come out of fresh memory each time: with 1 MiB a large body took five times as long.
SocketUnreader.max_body_chunk = 128 << 10


class Log(Logger):  # type: ignore[misc] # gunicorn ships no types
    """gunicorn's own messages go where ours go."""

    def setup(self, cfg: Any) -> None:
        configure_logging(load(os.environ))
        self.error_log.handlers[:] = []
        self.error_log.propagate = True
        self.access_log.handlers[:] = []


class Worker(GeventWorker):  # type: ignore[misc] # gunicorn ships no types
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.active: set[Any] = set()
        self.idle: set[Any] = set()

    def handle(self, listener: Any, client: socket.socket, addr: Any) -> None:
        client.settimeout(_PEER_SECONDS)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        mine = gevent.getcurrent()
        self.active.add(mine)
        try:
            AsyncWorker.handle(self, listener, client, addr)
        finally:
            self.active.discard(mine)

    def timeout_ctx(self) -> _Idle:
        """Entered whenever a connection waits for its next request."""
        return _Idle(self)

    def handle_exit(self, sig: Any, frame: Any) -> None:
        """Running requests may end; streams, and connections that wait for a request, are not waited for."""
        super().handle_exit(sig, frame)
        for greenlet in list(self.idle):
            greenlet.kill(StopIteration, block=False)
        interrupt(list(self.active))

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> Any:
        try:
            answered = super().handle_request(listener_name, req, sock, addr)
        except TimeoutError as exc:  # nothing of ours: the peer takes no more
            raise ConnectionResetError(errno.ECONNRESET, "the peer takes no more") from exc
        except StopIteration:
            _discard(req)
            raise
        if not _discard(req):
            raise StopIteration
        return answered

    def handle_error(self, req: Any, client: socket.socket, addr: Any, exc: BaseException) -> None:
        if isinstance(exc, (Stop, OSError)):
            return  # the caller had gone, or the worker shall end
        code, detail = _kind_of(exc)
        if code == "internal_error":
            self.log.exception("a request failed outside the application")
        else:
            self.log.info("refused what is not a request of ours: %s", type(exc).__name__)
        try:
            util.write_nonblock(client, _answer(code, detail))
        except OSError:
            self.log.debug("the peer had gone")


def _discard(req: Any) -> bool:
    """Take the rest of a body that was refused, so that its sender gets to read why; false for too much.

    gunicorn would read on without end, and without letting any other request have its turn.
    """
    if req.body.failed:
        return False
    try:
        with gevent.Timeout(_DISCARD_SECONDS, False):  # type: ignore[arg-type] # False: it ends quietly
            while req.body.read(_DISCARD_BYTES):
                gevent.sleep(0)  # the time is looked at here
            return True
    except (OSError, errors.ParseException):
        pass
    return False


class _Idle:
    """A wait for the next request of a kept connection: bounded, and over at once when the worker stops.

    gunicorn closes a connection quietly on StopIteration.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._greenlet = gevent.getcurrent()
        self._timeout = gevent.Timeout(worker.cfg.keepalive)

    def __enter__(self) -> None:
        if not self._worker.alive:
            raise StopIteration
        self._worker.idle.add(self._greenlet)
        self._timeout.start()

    def __exit__(self, kind: object, exc: object, trace: object) -> bool:
        self._timeout.cancel()
        self._worker.idle.discard(self._greenlet)
        return exc is self._timeout


def _kind_of(exc: BaseException) -> tuple[str, str]:
    if isinstance(exc, errors.LimitRequestLine):
        return "uri_too_long", "The request line is too long."
    if isinstance(exc, errors.LimitRequestHeaders):
        return "headers_too_large", "The headers are too many or too large."
    if isinstance(exc, (errors.ParseException, errors.InvalidHTTPVersion)):
        return "malformed_http", "This is not an HTTP/1.1 request that can be understood without doubt."
    return "internal_error", "The server failed. Its log has the details."


def _answer(code: str, detail: str) -> bytes:
    request_id = secrets.token_hex(8)
    body = json.dumps(problem_body(code, detail, request_id)).encode()
    head = [
        f"HTTP/1.1 {STATUSES[code]} Refused",
        "Connection: close",
        "Content-Type: application/problem+json",
        f"Content-Length: {len(body)}",
        f"X-Request-Id: {request_id}",
        *(f"{name}: {value}" for name, value in HEADERS.items()),
    ]
    return "\r\n".join([*head, "", ""]).encode() + body
