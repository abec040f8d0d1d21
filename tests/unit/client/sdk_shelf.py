"""A server on loopback that keeps files in memory, and whose connections break where a test wants it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

from sdk_wire import SESSION, problem


@dataclass(frozen=True)
class Sent:
    """A request as it came: `path` is the one in the sandbox, as bytes."""

    method: str
    route: str
    path: bytes
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class _Quiet(ThreadingHTTPServer):
    """A client that hangs up is no error here."""

    def handle_error(self, *args: Any) -> None: ...


class Shelf:
    """`files` by path. `cuts` are bytes after which the next downloads break; `script` answers by route."""

    def __init__(self) -> None:
        self.files: dict[bytes, bytes] = {}
        self.sent: list[Sent] = []
        self.cuts: list[int] = []
        self.head_cuts: list[int] = []
        self.lost: list[int] = []  # so many uploads are read and then not answered, by bytes read
        self.streams: list[list[Any]] = []  # lines of one watch after the other
        self.archive = b""
        self.script: dict[str, list[tuple[int, Any]]] = {}
        self.on_cut: Any = None
        self._server = _Quiet(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def asked(self, method: str, route: str) -> list[Sent]:
        return [one for one in self.sent if (one.method, one.route) == (method, route)]

    def entry(self, path: bytes, kind: str = "file") -> dict[str, Any]:
        text = path.decode(errors="replace")
        found = {"path": text, "name": text.rpartition("/")[2], "type": kind, "mode": "0640"}
        found.update(size=len(self.files.get(path, b"")), modified_at="2030-01-01T00:00:00Z")
        found["etag"] = self.etag(path)
        if text.encode() != path:
            found["path_base64"] = base64.b64encode(path).decode()
        return found

    def etag(self, path: bytes) -> str:
        return hashlib.sha256(self.files.get(path, b"")).hexdigest()[:16]

    def kind(self, path: bytes) -> str | None:
        if path in self.files:
            return "file"
        inside = path in (b".", b"") or any(name.startswith(path + b"/") for name in self.files)
        return "directory" if inside else None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        shelf = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None: ...

            def handle_one(self) -> None:
                parts = urlsplit(self.path)
                query = dict(parse_qsl(parts.query, errors="surrogateescape", keep_blank_values=True))
                raw = re.search(r"(?:^|&)path=([^&]*)", parts.query)
                path = unquote_to_bytes(raw[1].replace("+", " ")) if raw else b""
                route = re.sub(r"^/v1/sessions/[^/]+/", "", parts.path)
                if shelf.lost:
                    self.rfile.read(shelf.lost.pop(0))
                    shelf.sent.append(Sent(self.command, route, path, query, {}, b""))
                    self.close_connection = True
                    return
                headers = {name.lower(): value for name, value in self.headers.items()}
                sent = Sent(self.command, route, path, query, headers, self.body())
                shelf.sent.append(sent)
                if shelf.script.get(route):
                    return self.json(*shelf.script[route].pop(0))
                answer = getattr(self, f"{self.command.lower()}_{route.replace('/', '_')}", None)
                if answer is not None:
                    return answer(sent)
                self.json(204 if self.command == "DELETE" else 200, {**SESSION, "exit_code": 0})

            do_GET = do_POST = do_DELETE = do_PUT = handle_one

            def body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                found = b""
                while size := int(self.rfile.readline(), 16):
                    found += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return found

            def json(self, status: int, body: Any) -> None:
                self.whole(status, b"" if status == 204 else json.dumps(body).encode(), {})

            def problem(self, code: str, status: int, **extras: Any) -> None:
                self.json(status, problem(code, status, **extras).body)

            def whole(self, status: int, content: bytes, headers: dict[str, str], cut: int = -1) -> None:
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                if shelf.head_cuts:
                    self._headers_buffer = [b"".join(self._headers_buffer)[: shelf.head_cuts.pop(0)]]
                    self.flush_headers()
                    self.close_connection = True
                    return
                self.end_headers()
                self.wfile.write(content if cut < 0 else content[:cut])
                self.close_connection = self.close_connection or cut >= 0

            def get_files_content(self, sent: Sent) -> None:
                if sent.path not in shelf.files:
                    return self.problem("not_found", 404, path=sent.path.decode(errors="replace"))
                content, etag = shelf.files[sent.path], f'"{shelf.etag(sent.path)}"'
                said = re.match(r"bytes=(\d+)-(\d*)", sent.headers.get("range", ""))
                status, headers = 200, {"ETag": etag}
                if said and sent.headers.get("if-range", etag) == etag:
                    first, last = int(said[1]), int(said[2] or len(content) - 1)
                    headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
                    status, content = 206, content[first : last + 1]
                cut = shelf.cuts.pop(0) if shelf.cuts else -1
                self.whole(status, content, headers, cut)
                if cut >= 0 and shelf.on_cut:
                    shelf.on_cut()

            def put_files_content(self, sent: Sent) -> None:
                if shelf.kind(sent.path) == "directory":
                    return self.problem("is_directory", 409, path=sent.path.decode())
                new = sent.path not in shelf.files
                shelf.files[sent.path] = sent.body
                self.json(201 if new else 200, shelf.entry(sent.path))

            def get_files_stat(self, sent: Sent) -> None:
                kind = shelf.kind(sent.path)
                if kind is None:
                    return self.problem("not_found", 404, path=sent.path.decode(errors="replace"))
                self.json(200, shelf.entry(sent.path, kind))

            def get_files(self, sent: Sent) -> None:
                names, first = sorted(shelf.files), int(sent.query.get("cursor", 0))
                page = [shelf.entry(name) for name in names[first : first + 2]]
                more = str(first + 2) if first + 2 < len(names) else None
                self.json(200, {"path": ".", "entries": page, "next_cursor": more})

            def get_files_archive(self, sent: Sent) -> None:
                cut = shelf.cuts.pop(0) if shelf.cuts else None
                self.chunks([shelf.archive[:cut]], broken=cut is not None)

            def put_files_archive(self, sent: Sent) -> None:
                shelf.archive = sent.body
                counts = {"files": 2, "directories": 1, "bytes": 5}
                self.json(200, {"path": "x", **counts, "skipped": [{"path": "bad", "reason": "link"}]})

            def get_files_watch(self, sent: Sent) -> None:
                lines = shelf.streams.pop(0)
                self.chunks([json.dumps(line).encode() + b"\n" for line in lines], broken=True)

            def chunks(self, pieces: list[bytes], broken: bool) -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for piece in pieces:
                    for start in range(0, len(piece), 700):
                        part = piece[start : start + 700]
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                self.wfile.write(b"" if broken else b"0\r\n\r\n")
                self.close_connection = broken

        return Handler
