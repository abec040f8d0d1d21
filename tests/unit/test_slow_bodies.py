"""Bodies that come a byte at a time: they end, and each tenant has only so many of them open."""

from __future__ import annotations

import io
import time

import gevent
import pytest
from expect import problem
from web_in_process import Web
from werkzeug.test import TestResponse

from server.api import parse, transfers
from server.api.problems import Refusal
from server.errors import TooManyStreams

_MULTIPART = "multipart/form-data; boundary=b"
_FILE = b'--b\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\nx\r\n--b--\r\n'


class Trickle(io.RawIOBase):
    """A space now and then. With `fill`, a read is not over before it has all that it asked for."""

    def __init__(self, fill: bool) -> None:
        self._fill = fill

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        wanted = len(buffer) if self._fill else 1
        for at in range(wanted):
            gevent.sleep(0.02)
            buffer[at : at + 1] = b" "
        return wanted


def send(web: Web, path: str, kind: str, body: io.IOBase) -> TestResponse:
    stream = {"wsgi.input": body, "CONTENT_LENGTH": str(1 << 20)}
    headers = {"X-API-Key": web.key, "Content-Type": kind}
    return web.http.post(path, headers=headers, environ_overrides=stream)


@pytest.mark.parametrize("fill", [False, True])
@pytest.mark.parametrize(("path", "kind"), [("/upload", _MULTIPART), ("/create_session", "application/json")])
def test_a_body_that_trickles_is_given_up(
    web: Web, monkeypatch: pytest.MonkeyPatch, path: str, kind: str, fill: bool
) -> None:
    monkeypatch.setattr(transfers, "_PACE_SECONDS", 0.3)
    monkeypatch.setattr(transfers, "_SLOWEST", 1 << 16)
    monkeypatch.setattr(parse, "_BODY_SECONDS", 0.3)
    began = time.monotonic()
    problem(send(web, path, kind, Trickle(fill)), 400, "malformed_http")
    assert time.monotonic() - began < 3
    assert web.get("/v1/uploads").get_json()["files"] == []


def test_the_pace_is_that_of_the_last_minute() -> None:
    pace = transfers.Pace()
    pace.note(100 << 20, 59.0)
    pace.note(1, 2.0)
    pace.note(30 << 10, 59.0)
    with pytest.raises(Refusal, match="too slowly"):
        pace.note(1 << 10, 2.0)


def test_what_comes_at_a_kilobyte_a_second_may_go_on_for_ever() -> None:
    pace = transfers.Pace()
    for _ in range(1000):
        pace.note(1100, 1.0)


def test_uploads_count_as_streams_of_their_tenant(web: Web) -> None:
    executions = web.http.application.extensions["sandbox"].executions
    for body in (_FILE, b"no multipart") * 3:
        send(web, "/upload", _MULTIPART, io.BytesIO(body))
    entered = []
    with pytest.raises(TooManyStreams) as most:
        while True:
            entered.append(executions.enter_stream("default", None))
    assert len(entered) == most.value.extras["allowed"], "uploads that are over do not count"
    post = {"data": _FILE, "content_type": _MULTIPART, "headers": {"X-API-Key": web.key}}
    refused = problem(web.http.post("/upload", **post), 429, "too_many_streams")  # type: ignore[arg-type]
    assert refused["scope"] == "tenant"
    entered.pop()()
    assert web.http.post("/upload", **post).status_code == 201  # type: ignore[arg-type]
