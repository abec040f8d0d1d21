"""A server on loopback with one execution, told as a story: events by position, and connections that break.

Each connection that asks for events meets the next fault of a list. Faults are real: sockets are cut in the
middle of a chunk, or stay open without a word.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import struct
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sdk_wire import SESSION, problem

RESULT = {"exit_code": 3, "status": "ended", "cancelled": False, "execution_id": "e", "session_id": "s1"}


@dataclass(frozen=True)
class Fault:
    """How one connection fails: after so many bytes of events, or with a status instead of them."""

    after: int | None = None
    how: str = "close"  # or "reset"; or "silence", until the client hangs up
    status: int = 0
    problem: dict[str, Any] | None = None


class _Quiet(ThreadingHTTPServer):
    """A client that hangs up is no error here."""

    def handle_error(self, *args: Any) -> None: ...


class Story:
    """`pieces` are kinds and bytes of output, in order."""

    def __init__(self, *pieces: tuple[str, bytes], port: int = 0) -> None:
        self.pieces = pieces
        self.faults: list[Fault] = []
        self.seen: list[tuple[str, str, Any]] = []
        self.bodies: list[Any] = []
        self.executions: dict[str, Any] = {}
        self.hung_up: list[bool] = []
        self.keepalives = 0
        self.running_for = 0  # so many looks at the execution find it running
        self.script: dict[str, list[Any]] = {}  # answers for paths that end so
        self._lock = threading.Lock()
        self._server = _Quiet(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def asked(self, method: str, part: str) -> list[str]:
        return [path for seen, path, _ in self.seen if seen == method and part in path]

    @property
    def output(self) -> bytes:
        return b"".join(data for _, data in self.pieces)

    def lines(self, after: int | None) -> bytes:
        """The events behind a position, as a server cuts them: a piece that was half read comes in half."""
        events: list[dict[str, Any]] = []
        if after is None:
            events.append({"event": "start", "seq": 0, "execution_id": "e", "session_id": "s1", "pty": False})
        events += [{"event": "keepalive", "seq": after or 0}] * self.keepalives
        position = 0
        for kind, data in self.pieces:
            position += len(data)
            if position > (after or 0):
                events.append(_event(kind, position, data[-(position - (after or 0)) :], data))
        events.append({"event": "end", "seq": position + 1, "result": RESULT})
        return b"".join(json.dumps(event).encode() + b"\n" for event in events)

    def execution(self) -> dict[str, Any]:
        with self._lock:
            self.running_for -= 1
            over = self.running_for < 0
        text = self.output.decode(errors="replace")
        result = {**RESULT, "stdout": text, "output": text} if over else None
        status = "ended" if over else "running"
        return {"execution_id": "e", "session_id": "s1", "status": status, "command": "c", "result": result}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        story = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None: ...

            def handle_one(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = json.loads(raw) if raw else None
                story.seen.append((self.command, self.path, body))
                where = urlsplit(self.path)
                if (said := story.script.get(where.path.rpartition("/")[2])) and said:
                    self.json(*said.pop(0))
                elif where.path == "/v1/sessions":
                    self.json(201, SESSION)
                elif where.path.endswith("/events"):
                    after = parse_qs(where.query).get("after")
                    self.events(int(after[0]) if after else None)
                elif self.command == "POST" and where.path.endswith("/executions"):
                    self.started(body)
                elif self.command == "GET" and where.path.endswith("/executions"):
                    self.json(200, {"executions": [story.execution()]})
                elif self.command == "GET" and "/executions/" in where.path:
                    self.json(200, story.execution())
                else:
                    self.json(204, None)

            do_GET = do_POST = do_DELETE = handle_one

            def started(self, body: dict[str, Any]) -> None:
                story.executions.setdefault(body["execution_id"], body)
                if body.get("stream"):
                    self.events(None)
                else:
                    self.json(201, {**story.execution(), "execution_id": body["execution_id"]})

            def json(self, status: int, body: Any) -> None:
                content = b"" if status == 204 else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def events(self, after: int | None) -> None:
                fault = story.faults.pop(0) if story.faults else Fault()
                if fault.problem is not None:
                    return self.json(fault.status, fault.problem)
                if fault.status:
                    return self.json(fault.status, {"a proxy": "says so"})
                lines = story.lines(after)
                if after is not None and after > len(story.output):
                    return self.json(204, None)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-ndjson")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.chunks(lines if fault.after is None else lines[: fault.after])
                if fault.after is None:
                    self.wfile.write(b"0\r\n\r\n")
                    return
                self.broken(fault)

            def chunks(self, content: bytes) -> None:
                """In two pieces that end anywhere."""
                middle = len(content) // 3
                for part in (content[:middle], content[middle:]):
                    if part:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                        self.wfile.flush()

            def broken(self, fault: Fault) -> None:
                self.close_connection = True
                if fault.how == "silence":
                    self.connection.settimeout(1)
                    with contextlib.suppress(OSError):
                        story.hung_up.append(self.connection.recv(1) == b"")
                elif fault.how == "reset":
                    linger = struct.pack("ii", 1, 0)
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    self.connection.close()
                else:
                    self.wfile.write(b"ff\r\nhalf a chu")

        return Handler


def _event(kind: str, seq: int, data: bytes, whole: bytes) -> dict[str, Any]:
    fields = {"event": kind, "seq": seq, "text": data.decode(errors="replace")}
    try:
        data.decode()
    except UnicodeDecodeError:
        fields["base64"] = base64.b64encode(data).decode()
    return fields


def said(code: str, status: int, **extras: Any) -> tuple[int, Any]:
    return status, problem(code, status, **extras).body
