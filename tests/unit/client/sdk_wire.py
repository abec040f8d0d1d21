"""A server on loopback that plays a script: what it is told to answer, in order, and no more."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "e2b_" + "0123456789" * 8
SESSION = {"session_id": "s1", "status": "created", "state": "running", "metadata": {}}
RESULT = {"exit_code": 0, "stdout": "hi\n", "stderr": "", "output": "hi\n"}


@dataclass(frozen=True)
class Seen:
    """A request as it came over the wire."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    peer: tuple[str, int]


@dataclass(frozen=True)
class Answer:
    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    cut: str = ""  # "before": no answer at all; "middle": half an answer


def problem(code: str, status: int, retryable: bool = False, retry_after: str = "", **extras: Any) -> Answer:
    content = {"title": code, "status": status, "detail": f"about {code}", "code": code} | extras
    headers = {"Content-Type": "application/problem+json"} | (
        {"Retry-After": retry_after} if retry_after else {}
    )
    return Answer(content | {"retryable": retryable, "request_id": "r1"}, status, headers)


class Wire:
    """Answers POST /v1/sessions and DELETE by itself; everything else as `plays` says."""

    def __init__(self, port: int = 0) -> None:
        self.seen: list[Seen] = []
        self.session: Answer = Answer(SESSION, 201)
        self.end: Answer = Answer(status=204)
        self._script: list[Answer] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def plays(self, *answers: Answer) -> None:
        self._script.extend(answers)

    def requests(self, method: str, path: str = "") -> list[Seen]:
        return [seen for seen in self.seen if seen.method == method and seen.path.endswith(path)]

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, seen: Seen) -> Answer:
        with self._lock:
            self.seen.append(seen)
            if seen.method == "POST" and seen.path == "/v1/sessions":
                return self.session
            if seen.method == "DELETE":
                return self.end
            return self._script.pop(0) if self._script else Answer(RESULT)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        wire = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet

            def log_message(self, *args: Any) -> None: ...

            def handle_one(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = json.loads(raw) if raw else None
                headers = {name.lower(): value for name, value in self.headers.items()}
                self.send(wire.answer(Seen(self.command, self.path, headers, body, self.client_address)))

            do_GET = do_POST = do_DELETE = handle_one

            def send(self, answer: Answer) -> None:
                time.sleep(answer.delay)
                if answer.cut == "before":
                    self.close_connection = True
                    return
                is_text = isinstance(answer.body, str)
                content = answer.body.encode() if is_text else json.dumps(answer.body).encode()
                content = b"" if answer.status == 204 else content
                self.send_response(answer.status)
                for name, value in ({"Content-Type": "application/json"} | answer.headers).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2] if answer.cut == "middle" else content)
                self.close_connection = self.close_connection or answer.cut == "middle"

        return Handler
