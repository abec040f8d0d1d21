"""The server as the world reaches it, by its public URL: the certificate, the headers, a stream on its way.

Asked by `sandboxctl doctor --url`. A stream needs a key, taken from SANDBOX_API_KEY and shown nowhere; it is
proved unbuffered by causing each event only after the one before has arrived.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from server.keeper.doctor import CRITICAL, MAJOR, MINOR, NOTE, Finding, judged, unknown

_SECONDS = 15.0
_DAY = 86400.0
_SOON_DAYS, _TOO_SOON_DAYS = 21, 7
_ADVICE_PROXY = "take deploy/nginx.conf as it is: proxy_buffering off; gzip off;"


@dataclass(frozen=True)
class Door:
    """Where the server is reached, and the key to try a stream with."""

    host: str
    port: int
    secure: bool
    key: str

    @classmethod
    def at(cls, url: str, key: str) -> Door:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be a URL such as https://sandbox.example.org")
        return cls(
            parts.hostname,
            parts.port or (443 if parts.scheme == "https" else 80),
            parts.scheme == "https",
            key,
        )

    def open(self) -> http.client.HTTPConnection:
        if self.secure:
            return http.client.HTTPSConnection(self.host, self.port, timeout=_SECONDS)
        return http.client.HTTPConnection(self.host, self.port, timeout=_SECONDS)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], Any]:
        with contextlib.closing(self.open()) as connection:
            answer = self.send(connection, method, path, body)
            text = answer.read(1 << 20)
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, json.loads(text or b"null")

    def send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any
    ) -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/json", "Accept": "application/x-ndjson, application/json"}
        if self.key:
            headers["X-API-Key"] = self.key
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return connection.getresponse()


def examine(door: Door, now: float) -> Iterator[Finding]:
    yield judged(
        "public.https", door.secure, MAJOR,
        "https" if door.secure else "http: keys can be read on the way", "https",
        "install deploy/nginx.conf with a certificate: docs/operations.md",
    )  # fmt: skip
    try:
        if door.secure:
            yield from judge_certificate(*_certificate(door), now)
        status, headers, _ = door.ask("GET", "/healthz")
    except (OSError, http.client.HTTPException, ValueError) as exc:
        yield Finding(
            "public.answers",
            CRITICAL,
            _words(exc),
            "an answer",
            "nginx -t; curl -v the URL; look at nginx's log",
        )
        return
    yield judged(
        "public.answers",
        status == 200,
        CRITICAL,
        f"status {status}",
        "status 200",
        "curl -v the URL: the body says why",
    )
    if door.secure:
        hsts = "strict-transport-security" in headers
        yield judged("public.hsts", hsts, NOTE, "sent" if hsts else "not sent", "sent", _ADVICE_PROXY)
    yield _stream(door)


def judge_certificate(version: str, ends: float, now: float) -> Iterator[Finding]:
    yield judged(
        "public.tls",
        version in ("TLSv1.2", "TLSv1.3"),
        MAJOR,
        version,
        "TLSv1.3",
        "ssl_protocols TLSv1.2 TLSv1.3;",
    )
    days = int((ends - now) // _DAY)
    yield judged(
        "public.certificate",
        days >= _SOON_DAYS,
        CRITICAL if days < _TOO_SOON_DAYS else MAJOR,
        f"ends in {days} days",
        f"{_SOON_DAYS} days or more",
        "certbot renew; systemctl status certbot.timer",
    )


def _certificate(door: Door) -> tuple[str, float]:
    """The version of TLS, and when the certificate ends. One that does not hold is an OSError."""
    context = ssl.create_default_context()
    with (
        socket.create_connection((door.host, door.port), _SECONDS) as raw,
        context.wrap_socket(raw, server_hostname=door.host) as connection,
    ):
        told = connection.getpeercert() or {}
        return connection.version() or "", float(ssl.cert_time_to_seconds(str(told["notAfter"])))


def _stream(door: Door) -> Finding:
    if not door.key:
        return unknown("public.stream", "no key", "SANDBOX_API_KEY=KEY sandboxctl doctor --url URL", NOTE)
    try:
        arrived = _arrives(door)
    except (OSError, http.client.HTTPException, ValueError, KeyError) as exc:
        return unknown("public.stream", _words(exc), "try a session by hand: docs/api.md", MINOR)
    found = "each event arrives when it happens" if arrived else "events are held back on the way"
    return judged("public.stream", arrived, MAJOR, found, "each event arrives when it happens", _ADVICE_PROXY)


def _arrives(door: Door) -> bool:
    _, _, session = door.ask("POST", "/v1/sessions", {})
    path = f"/v1/sessions/{session['session_id']}"
    try:
        body = {"command": ["cat"], "background": True, "stdin": "pipe"}
        _, _, started = door.ask("POST", f"{path}/executions", body)
        execution = f"{path}/executions/{started['execution_id']}"
        with contextlib.closing(door.open()) as connection:
            return _echoes(door, connection, execution)
    finally:
        door.ask("DELETE", path)


def _echoes(door: Door, connection: http.client.HTTPConnection, execution: str) -> bool:
    deadline = time.monotonic() + _SECONDS
    try:
        events = door.send(connection, "GET", f"{execution}/events", None)
        events.readline(1 << 16)
        door.ask("POST", f"{execution}/input", {"data": "echo-of-the-doctor\n"})
        while time.monotonic() < deadline:
            if b"echo-of-the-doctor" in events.readline(1 << 16):
                return True
    except TimeoutError:  # not even the head of the answer came
        return False
    return False


def _words(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}"[:200]
