"""The wire between server and guest: frames of a JSON head and a raw body, both with a length and a cap.

Both sides import this module, so the two can only disagree on the version, which `hello` tells.

A transfer has its connection to itself: after the request and the answer that lets it begin, one side sends
pieces, frames without a head, and then one frame with a head and no body, which says that all was sent, or
what went wrong. A connection that ends without it was broken off. Each side holds one piece at a time.
Whoever takes or sends nothing for STALLED seconds is given up.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
import time

TYPE_CHECKING = False  # that of `typing`, whose loading would be a tenth of a guest's way to its first answer
if TYPE_CHECKING:
    from typing import Any, BinaryIO, Dict, Union

    Head = Dict[str, Any]
    Body = Union[bytes, bytearray]
else:
    Head = Body = object

VERSION = 6
SOCKET_NAME = "guest.sock"
SECRET_NAME = "secret"

PIECE = 128 << 10  # the most bytes of a transfer in one frame
STALLED = 60.0
LONGEST_DESCRIPTION = 8 << 20  # of what a guest says of its session, for the next guest of the same

_PREFIX = struct.Struct(">II")
_LONGEST_END = 64 << 10
_CHUNK = 1 << 20
_FIRST_READ = 1 << 16


class FrameError(Exception):
    """The peer sent something that is not a frame of ours, or one over the cap. Drop the connection."""


class Limits:
    def __init__(self, head: int, body: int) -> None:
        self.head = head
        self.body = body


# What a guest accepts: a command of a few MiB, and a stdin as large as the API's largest body.
TO_GUEST = Limits(head=16 << 20, body=256 << 20)


def prove(secret: bytes, nonce: str) -> str:
    """What a guest answers to show that it is the sandbox it should be."""
    return hmac.new(secret, nonce.encode(), hashlib.sha256).hexdigest()


def _packed(head: Head) -> bytes:
    return json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def send(sock: socket.socket, head: Head, body: Body = b"") -> None:
    packed = _packed(head)
    prefix = _PREFIX.pack(len(packed), len(body))
    if len(body) < _CHUNK:
        sock.sendall(prefix + packed + bytes(body))
        return
    sock.sendall(prefix + packed)
    sock.sendall(body)


def send_file(sock: socket.socket, head: Head, body: BinaryIO) -> None:
    """The same with a body from a file, a piece at a time."""
    size = body.seek(0, os.SEEK_END)
    body.seek(0)
    packed = _packed(head)
    sock.sendall(_PREFIX.pack(len(packed), size) + packed)
    while chunk := body.read(_CHUNK):
        sock.sendall(chunk)


def receive(sock: socket.socket, limits: Limits, deadline: float | None = None) -> tuple[Head, Body]:
    """The next frame, most often in one read. Raises EOFError when the peer closed between two frames.

    Neither side speaks out of turn, so nothing can follow a frame before it is answered. The whole frame
    must have come by the deadline (of time.monotonic), however slowly it trickles.
    """
    data = bytearray(sock.recv(_FIRST_READ))
    if not data:
        raise EOFError
    _fill(sock, data, _PREFIX.size, deadline)
    head_size, body_size = _PREFIX.unpack_from(data)
    if head_size > limits.head or body_size > limits.body:
        raise FrameError(f"a frame of {head_size} + {body_size} bytes is over the cap")
    body_at = _PREFIX.size + head_size
    _fill(sock, data, body_at, deadline)
    if len(data) > body_at + body_size:
        raise FrameError("the peer spoke out of turn")
    head = _parse(data[_PREFIX.size : body_at])
    body = data[body_at:]
    _fill(sock, body, body_size, deadline)
    return head, body


def send_piece(sock: socket.socket, data: Body | memoryview) -> None:
    """Some bytes of a transfer: at least one, PIECE at most."""
    sock.sendall(_PREFIX.pack(0, len(data)))
    sock.sendall(data)


def send_end(sock: socket.socket, head: Head) -> None:
    """The last frame of a transfer."""
    send(sock, head)


def receive_piece(sock: socket.socket, buffer: bytearray) -> int | Head:
    """How many bytes of a transfer are now in the buffer (of PIECE bytes), or the head that ends it.

    Reads not a byte further than the frame goes. The socket's timeout holds for each read.
    """
    view = memoryview(buffer)
    _fill_exactly(sock, view[: _PREFIX.size])
    head_size, body_size = _PREFIX.unpack_from(buffer)
    if not head_size and 0 < body_size <= PIECE:
        _fill_exactly(sock, view[:body_size])
        return int(body_size)
    if not head_size or head_size > _LONGEST_END or body_size:
        raise FrameError(f"a frame of {head_size} + {body_size} bytes is no part of a transfer")
    raw = bytearray(head_size)
    _fill_exactly(sock, memoryview(raw))
    return _parse(raw)


def _fill_exactly(sock: socket.socket, view: memoryview) -> None:
    while view:
        received = sock.recv_into(view)
        if not received:
            raise FrameError("the peer broke the transfer off")
        view = view[received:]


def _parse(raw: bytearray) -> Head:
    try:
        head = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        raise FrameError("a frame's head is not JSON") from exc
    if not isinstance(head, dict):
        raise FrameError("a frame's head is not an object")
    return head


def _fill(sock: socket.socket, data: bytearray, size: int, deadline: float | None) -> None:
    """Read until `data` has `size` bytes."""
    while len(data) < size:
        if deadline is not None:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
        chunk = sock.recv(min(size - len(data), _CHUNK))
        if not chunk:
            raise FrameError("the peer closed in the middle of a frame")
        data += chunk
