"""HTTP/1.1 over kept connections, as little of it as will do: a client must cost less than what it measures.

Run as a program it is the load generator: a `Load` as JSON on stdin, what came of it on stdout.
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

_SECONDS = 120.0  # nothing measured here takes longer
_IDLE_SECONDS = 2.0  # a server may close what was idle for longer


class Unexpected(Exception):
    """A server answered something else than 200. The message holds what."""


@dataclass(frozen=True)
class Request:
    port: int
    method: str
    path: str
    headers: dict[str, str]
    body: Any = None

    def as_bytes(self) -> bytes:
        body = b"" if self.body is None else json.dumps(self.body).encode()
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: 127.0.0.1"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if self.body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class Connection:
    """One kept connection. `feed` says when a whole answer is there."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._buffer = b""
        self.began = time.perf_counter()
        self._dial()

    def _dial(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self._port), _SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, request: bytes) -> None:
        self._buffer = b""
        self.began = time.perf_counter()
        self.socket.sendall(request)

    def feed(self) -> bool:
        data = self.socket.recv(1 << 16)
        if not data:
            raise Unexpected("the server hung up")
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        return bool(separator) and len(body) >= _content_length(head)

    @property
    def ok(self) -> bool:
        return self._buffer.startswith(b"HTTP/1.1 200 ")

    @property
    def body(self) -> bytes:
        return self._buffer.partition(b"\r\n\r\n")[2]

    def ask(self, request: bytes) -> bytes:
        """One exchange, waited for; on a fresh connection after a pause."""
        if time.perf_counter() - self.began > _IDLE_SECONDS:
            self.socket.close()
            self._dial()
        self.send(request)
        while not self.feed():
            pass
        if not self.ok:
            raise Unexpected(self._buffer[:400].decode(errors="replace"))
        return self.body


def _content_length(head: bytes) -> int:
    lower = head.lower()
    at = lower.find(b"\r\ncontent-length:")
    if at < 0:
        raise Unexpected(f"an answer without a length: {head[:100]!r}")
    return int(lower[at + 17 :].split(b"\r\n", 1)[0])


@dataclass(frozen=True)
class Load:
    """So many clients, each asking again as soon as it is answered; they share the requests out."""

    requests: list[Request]
    clients: int
    seconds: float


@dataclass(frozen=True)
class Done:
    """How long each good answer took; `failed` were anything else than 200; `seconds` is the whole."""

    failed: int
    seconds: float
    milliseconds: list[float]


def put_under(load: Load) -> Done:
    """In a process of its own, so that this one's threads and garbage do not count."""
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(asdict(load)),
        capture_output=True,
        text=True,
        timeout=load.seconds + 2 * _SECONDS,
    )
    if done.returncode:
        raise RuntimeError(f"the load generator failed: {done.stderr.strip().splitlines()[-1:]}")
    return Done(**json.loads(done.stdout))


def _generate(load: Load) -> Done:
    """What is under way when the time is up is waited for and counted, and so is the time until then."""
    ready = selectors.DefaultSelector()
    for number in range(load.clients):
        request = load.requests[number % len(load.requests)]
        connection = Connection(request.port)
        ready.register(connection.socket, selectors.EVENT_READ, (connection, request.as_bytes()))
    milliseconds: list[float] = []
    failed = 0
    now = began = time.perf_counter()
    for key in list(ready.get_map().values()):
        key.data[0].send(key.data[1])
    while ready.get_map():
        for key, _ in ready.select(_SECONDS):
            connection, raw = key.data
            if not connection.feed():
                continue
            now = time.perf_counter()
            if connection.ok:
                milliseconds.append((now - connection.began) * 1000)
            else:
                failed += 1
            if now - began < load.seconds:
                connection.send(raw)
            else:
                ready.unregister(connection.socket)
                connection.socket.close()
    return Done(failed, now - began, milliseconds)


def _main() -> None:
    asked = json.load(sys.stdin)
    load = Load([Request(**request) for request in asked["requests"]], asked["clients"], asked["seconds"])
    json.dump(asdict(_generate(load)), sys.stdout)


if __name__ == "__main__":
    _main()
