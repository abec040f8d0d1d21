"""The wire between server and guest: frames of a JSON head and a raw body, both with a length and a cap.

Both sides import this module, so the two can only disagree on the version, which `hello` tells.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import struct
from dataclasses import dataclass
from typing import Any, Dict

VERSION = 1
SOCKET_NAME = "guest.sock"
SECRET_NAME = "secret"

_PREFIX = struct.Struct(">II")
_CHUNK = 1 << 20

Head = Dict[str, Any]


class FrameError(Exception):
    """The peer sent something that is not a frame of ours, or one over the cap. Drop the connection."""


@dataclass(frozen=True)
class Limits:
    head: int
    body: int


# What a guest accepts: a command of a few MiB, and a stdin as large as the API's largest body.
TO_GUEST = Limits(head=16 << 20, body=256 << 20)


def prove(secret: bytes, nonce: str) -> str:
    """What a guest answers to show that it is the sandbox it should be."""
    return hmac.new(secret, nonce.encode(), hashlib.sha256).hexdigest()


def send(sock: socket.socket, head: Head, body: bytes = b"") -> None:
    packed = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
    prefix = _PREFIX.pack(len(packed), len(body))
    if len(body) < _CHUNK:
        sock.sendall(prefix + packed + body)
        return
    sock.sendall(prefix + packed)
    sock.sendall(body)


def receive(sock: socket.socket, limits: Limits) -> tuple[Head, bytes]:
    """The next frame. Raises EOFError when the peer closed between two frames."""
    prefix = _read_exactly(sock, _PREFIX.size, at_boundary=True)
    head_size, body_size = _PREFIX.unpack(prefix)
    if head_size > limits.head or body_size > limits.body:
        raise FrameError(f"a frame of {head_size} + {body_size} bytes is over the cap")
    head = _parse(_read_exactly(sock, head_size))
    return head, bytes(_read_exactly(sock, body_size))


def _parse(raw: bytearray) -> Head:
    try:
        head = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        raise FrameError("a frame's head is not JSON") from exc
    if not isinstance(head, dict):
        raise FrameError("a frame's head is not an object")
    return head


def _read_exactly(sock: socket.socket, size: int, at_boundary: bool = False) -> bytearray:
    data = bytearray()
    while len(data) < size:
        chunk = sock.recv(min(size - len(data), _CHUNK))
        if not chunk:
            if at_boundary and not data:
                raise EOFError
            raise FrameError("the peer closed in the middle of a frame")
        data += chunk
    return data
