"""One WebSocket connection on a gunicorn socket. The protocol is the `websockets` library's, the I/O is ours.

Reading stops while what was read is being dealt with, and writing waits for the peer: neither side can fill
our memory. See docs/adr/0009-websockets.md.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from websockets.exceptions import InvalidHandshake
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import Event, State
from websockets.server import ServerProtocol

from server.api.problems import Refusal

_LONGEST_MESSAGE = 1 << 20
_READ_SIZE = 4 << 10  # the smallest frames have 6 bytes, and each costs as much as a large one
_FRAME_WEIGHT = 8  # so a byte here costs as much as several bytes elsewhere

Pace = Callable[[int], AbstractContextManager[None]]
Meter = Callable[[int, int], None]

Message = str | bytes


class Closed(Exception):
    """The connection is over, whoever ended it."""


class WebSocket:
    def __init__(self, environ: dict[str, Any], pace: Pace, meter: Meter) -> None:
        """Read the handshake, which `accept` answers. Raises Refusal for what is none.

        `pace` is given how costly a piece of work is, and lets others have their turn; `meter` is told how
        many bytes came and went.
        """
        self._pace = pace
        self._meter = meter
        peer: socket.socket | None = environ.get("gunicorn.socket")
        self._protocol = ServerProtocol(max_size=_LONGEST_MESSAGE)
        self._sending = threading.Lock()
        self._arrived: deque[Event] = deque()
        self._parts = bytearray()
        self._kind = Opcode.TEXT
        self.last_heard = time.monotonic()
        self._protocol.receive_data(_request_head(environ))
        request = next(iter(self._protocol.events_received()), None)
        if peer is None or not isinstance(request, Request):
            raise _not_a_handshake()
        self._response = self._protocol.accept(request)
        if isinstance(self._protocol.handshake_exc, InvalidHandshake):
            raise _not_a_handshake()
        self._peer = peer

    def accept(self) -> None:
        """From here on it is a WebSocket. Raises Closed."""
        self._protocol.send_response(self._response)
        self._flush()

    def receive(self, seconds: float) -> Message | None:
        """The next message; None when none came in time. Raises Closed."""
        deadline = time.monotonic() + seconds
        while True:
            self._arrived.extend(self._protocol.events_received())
            while self._arrived:
                message = self._assembled(self._arrived.popleft())
                if message is not None:
                    return message
            if self._protocol.state is not State.OPEN:
                raise Closed
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._read(left)

    def send(self, message: Message) -> None:
        """Waits until the peer has taken it, as long as the socket's own timeout allows. Raises Closed."""
        with self._sending:
            if self._protocol.state is not State.OPEN:
                raise Closed
            if isinstance(message, str):
                self._protocol.send_text(message.encode())
            else:
                self._protocol.send_binary(message)
            self._flush()

    @property
    def is_open(self) -> bool:
        """Neither side has begun to close it."""
        return self._protocol.state is State.OPEN

    def ping(self) -> None:
        with self._sending:
            if self._protocol.state is State.OPEN:
                self._protocol.send_ping(b"")
                self._flush()

    def close(self, code: int, reason: str) -> None:
        """Say why. The peer then closes its end, which wakes up whoever is receiving."""
        try:
            with self._sending:
                if self._protocol.state is State.OPEN:
                    self._protocol.send_close(code, reason)
                self._flush()
        except Closed:
            return

    def linger(self, seconds: float) -> None:
        """Read on until the peer has closed: a connection closed before that would lose our last words."""
        deadline = time.monotonic() + seconds
        try:
            while (left := deadline - time.monotonic()) > 0:
                self._read(left)
                self._protocol.events_received()  # and dropped
        except Closed:
            return

    def _read(self, seconds: float) -> None:
        time.sleep(0)  # what can always be read at once would never let others run
        try:
            if not select.select([self._peer], [], [], seconds)[0]:
                return
            data = self._peer.recv(_READ_SIZE)
        except OSError as exc:
            raise Closed from exc
        if not data:
            raise Closed
        self.last_heard = time.monotonic()
        self._meter(len(data), 0)
        with self._pace(_FRAME_WEIGHT * len(data)), self._sending:
            self._protocol.receive_data(data)
            self._flush()  # pongs, and the answer to a close

    def _assembled(self, frame: Event) -> Message | None:
        """The message that is whole with this frame, if one is."""
        assert isinstance(frame, Frame), "the handshake is over"
        if frame.opcode is Opcode.CLOSE:
            raise Closed
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            return None
        if frame.opcode is not Opcode.CONT:
            self._kind = frame.opcode
        self._parts += frame.data
        if not frame.fin:
            return None
        data, self._parts = bytes(self._parts), bytearray()
        return data.decode("utf-8", "replace") if self._kind is Opcode.TEXT else data

    def _flush(self) -> None:
        try:
            data = b"".join(self._protocol.data_to_send())
            if data:
                self._peer.sendall(data)
                self._meter(0, len(data))
        except OSError as exc:
            raise Closed from exc


def _request_head(environ: dict[str, Any]) -> bytes:
    """The request as it came in, for the library to read."""
    headers = {
        name[5:].replace("_", "-"): value for name, value in environ.items() if name.startswith("HTTP_")
    }
    lines = [
        f"{environ['REQUEST_METHOD']} / HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def _not_a_handshake() -> Refusal:
    return Refusal(
        "invalid_request", "This is a WebSocket: connect with a WebSocket client.", field="Upgrade"
    )
