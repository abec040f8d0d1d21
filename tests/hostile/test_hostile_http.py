"""Attacks on the HTTP port: connections, headers, bodies, browsers (A90 to A92, A94, A98, A103)."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from invariants import Neighbour, Session, Tenant, is_problem, tells_no_secret
from stack import Stack

CLOSED_SECONDS = 45


@pytest.fixture(scope="module")
def half_open(stack: Stack) -> Iterator[tuple[float, list[socket.socket]]]:
    """600 connections without a whole request: half a header, half a body, nothing at all."""
    head = f"POST /execute HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {stack.key}\r\nContent-Length: 100\r\n"
    body = head.encode() + b"Content-Type: application/json\r\n\r\n{"
    connections = []
    for half in (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Half", body, b""):
        for _ in range(200):
            connection = socket.create_connection(("127.0.0.1", stack.port))
            connection.sendall(half)
            connections.append(connection)
    yield time.monotonic(), connections
    for connection in connections:
        connection.close()


def test_a90_half_open_connections_hold_nobody_up(
    half_open: Any, neighbour: Neighbour, session: Session
) -> None:
    """Good clients are answered as ever beside 600 that never finish their sentence."""
    for _ in range(10):
        neighbour.check()
    session.is_usable()


def raw(stack: Stack, request: bytes, seconds: float = 10) -> bytes:
    """What comes back until the server closes or falls silent."""
    with socket.create_connection(("127.0.0.1", stack.port), timeout=seconds) as connection:
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # refused before it was all sent
        received = b""
        try:
            while chunk := connection.recv(65536):
                received += chunk
        except (TimeoutError, ConnectionResetError):
            pass
        return received


HOST = b"Host: localhost\r\n"
MALFORMED = {
    "1000 headers": b"GET /healthz HTTP/1.1\r\n"
    + HOST
    + b"".join(b"X-%d: x\r\n" % n for n in range(1000))
    + b"\r\n",
    "a 64 KB header": b"GET /healthz HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 65536 + b"\r\n\r\n",
    "a 100 KB address": b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "a bad method": b"G@T /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    "HTTP/0.9": b"GET /healthz\r\n\r\n",
    "HTTP/9": b"GET /healthz HTTP/9.9\r\n" + HOST + b"\r\n",
    "length and chunks": b"POST /execute HTTP/1.1\r\n"
    + HOST
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": b"POST /execute HTTP/1.1\r\n"
    + HOST
    + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    "a negative length": b"POST /execute HTTP/1.1\r\n" + HOST + b"Content-Length: -5\r\n\r\n",
    "a signed length": b"POST /execute HTTP/1.1\r\n" + HOST + b"Content-Length: +5\r\n\r\nabcde",
    "xchunked": b"POST /execute HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a bad chunk": b"POST /execute HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n",
    "a folded header": b"GET /healthz HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n\r\n",
    "a space before the colon": b"GET /healthz HTTP/1.1\r\n" + HOST + b"Content-Length : 5\r\n\r\nabcde",
    "NUL in a header": b"GET /healthz HTTP/1.1\r\n" + HOST + b"X: a\0b\r\n\r\n",
    "a bare CR": b"GET /healthz HTTP/1.1\r\n" + HOST + b"X: a\rY: b\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 500,
    "nonsense": bytes(range(256)) * 40,
}


@pytest.mark.parametrize("request_", MALFORMED.values(), ids=MALFORMED)
def test_a91_what_is_not_http_is_refused_and_the_connection_closed(stack: Stack, request_: bytes) -> None:
    """With a 4xx, or without a word: nothing behind it is taken for another request."""
    answer = raw(stack, request_ + b"GET /v1/version HTTP/1.1\r\n" + HOST + b"\r\n")
    statuses = re.findall(rb"HTTP/1\.\d (\d{3}) ", answer)
    assert all(status.startswith(b"4") for status in statuses), answer[:200]
    assert b"guest_protocol" not in answer
    tells_no_secret(answer.decode("latin-1"))


def test_a91_no_header_says_which_path_is_meant_and_none_stands_for_the_host(stack: Stack) -> None:
    key = f"Authorization: Bearer {stack.key}\r\nConnection: close\r\n".encode()
    moved = raw(stack, b"GET /x/v1/sessions HTTP/1.1\r\nSCRIPT_NAME: /x\r\n" + HOST + key + b"\r\n")
    assert moved.startswith(b"HTTP/1.1 404 ")
    nameless = raw(stack, b"GET /v1/sessions HTTP/1.1\r\n" + key + b"\r\n")
    assert nameless.startswith(b"HTTP/1.1 400 ") and b"malformed_http" in nameless


def test_a91_an_unknown_method_is_a_problem(attacker: Tenant) -> None:
    for method in ("BREW", "TRACE", "PATCH", "CONNECT"):
        assert 400 <= attacker.call(method, "/v1/sessions").status_code < 500


TREACHEROUS_JSON = {
    "deep": b"[" * 1_000_000,
    "deep in a field": b'{"metadata":' * 80_000,
    "a long number": b'{"timeout":' + b"1" * 1_000_000 + b"}",
    "NaN": b'{"timeout":NaN}',
    "Infinity": b'{"timeout":-Infinity}',
    "overflow": b'{"timeout":1e999}',
    "doubled": b'{"user_id":"a","user_id":"b"}',
    "a surrogate": b'{"user_id":"\\ud800"}',
    "a surrogate as a name": b'{"metadata":{"\\ud800":"x"}}',
    "a reversed pair": b'{"user_id":"\\udc00\\ud800"}',
    "text": b'"x"',
    "null": b"null",
    "a list": b"[]",
    "BOM": b'\xef\xbb\xbf{"timeout":5}',
    "UTF-16": '{"timeout":5}'.encode("utf-16"),
    "not UTF-8": b'{"user_id":"\xff"}',
    "cut": b'{"user_id":"a',
    "two": b"{}{}",
    "NUL": b'{"user_id":"a\\u0000b"}',
    "a control": b'{"user_id":"a\x01b"}',
    "unknown": b'{"__proto__":{},"x":1}',
    "true for a number": b'{"cpus":true}',
}


@pytest.mark.parametrize("body", TREACHEROUS_JSON.values(), ids=TREACHEROUS_JSON)
def test_a92_treacherous_json_is_refused(attacker: Tenant, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    is_problem(attacker.call("POST", "/v1/sessions", data=body, headers=headers), "invalid_request")


def test_a92_a_body_over_the_limit_is_refused(session: Session) -> None:
    answer = session.execute("true", stdin="x" * (81 << 20))
    is_problem(answer, "body_too_large")


def test_a92_a_body_of_a_million_little_things_does_not_stop_the_server(
    attacker: Tenant, neighbour: Neighbour
) -> None:
    """JSON is read between the requests of everybody else: what takes long to read is refused before."""
    bodies = [
        b'{"command":[' + item * (16_000_000 // len(item)) + b"1]}"
        for item in (b"1,", b"{},", b'"",', b"[],")
    ]
    with neighbour.undisturbed():
        threads = [
            threading.Thread(
                target=attacker.call,
                args=("POST", f"/v1/sessions/{'0' * 32}/execute"),
                kwargs={"data": body, "headers": {"Content-Type": "application/json"}},
            )
            for body in bodies
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=100)


KEYS: dict[str, dict[str, Any]] = {
    "none": {},
    "empty": {"Authorization": "Bearer "},
    "twice": {"Authorization": "Bearer {key}", "X-API-Key": "{key}"},
    "basic": {"Authorization": "Basic {key}"},
    "no scheme": {"Authorization": "{key}"},
    "two spaces": {"Authorization": "Bearer  {key}"},
    "a tail": {"Authorization": "Bearer {key}0"},
    "a prefix": {"X-API-Key": "{start}"},
    "upper case": {"X-API-Key": "{upper}"},
    "not ASCII": {"X-API-Key": "\xe9{key}"},
    "commas": {"Authorization": "Bearer {key},Bearer {key}"},
    "unknown": {"X-API-Key": "e2b_" + "0" * 80},
    "a no-break space": {"X-API-Key": "{key}\xa0"},
    "a tail after a space": {"Authorization": "Bearer {key} x"},
    "a quoted key": {"X-API-Key": '"{key}"'},
    "full-width": {"X-API-Key": "e2b_" + "\xb2" * 80},
}


@pytest.mark.parametrize("headers", KEYS.values(), ids=KEYS)
def test_a94_every_wrong_key_gets_one_answer(stack: Stack, headers: dict[str, str]) -> None:
    shapes = {"key": stack.key, "start": stack.key[:-1], "upper": stack.key.upper()}
    sent = {name: value.format(**shapes).encode("latin-1") for name, value in headers.items()}
    answer = requests.get(stack.url + "/v1/sessions", headers=sent, timeout=10)
    problem = is_problem(answer, "unauthorized")
    without = is_problem(requests.get(stack.url + "/v1/sessions", timeout=10), "unauthorized")
    assert {**problem, "request_id": ""} == {**without, "request_id": ""}


def test_a94_space_around_a_header_is_not_part_of_it(stack: Stack) -> None:
    """As HTTP has it (RFC 9110, 5.5); a key with a space in it is none."""
    for key, status in ((stack.key, b"200"), (stack.key[:50] + " " + stack.key[50:], b"401")):
        sent = b"GET /v1/sessions HTTP/1.1\r\n" + HOST + b"X-API-Key:  " + key.encode() + b" \t \r\n\r\n"
        assert raw(stack, sent).split()[1] == status


def test_a94_a_key_in_the_address_is_none(stack: Stack) -> None:
    for name in ("key", "api_key", "access_token", "X-API-Key"):
        is_problem(requests.get(f"{stack.url}/v1/sessions?{name}={stack.key}", timeout=10), "unauthorized")
    assert stack.key not in stack.log("web")


def test_a94_a_huge_key_is_refused(stack: Stack) -> None:
    answer = raw(
        stack, b"GET /v1/sessions HTTP/1.1\r\n" + HOST + b"X-API-Key: " + b"a" * 1_000_000 + b"\r\n\r\n"
    )
    assert answer == b"" or answer.split()[1].startswith(b"4")


def test_a94_the_scheme_may_be_written_in_any_case(stack: Stack) -> None:
    for scheme in ("bearer", "BEARER"):
        answer = requests.get(
            stack.url + "/v1/sessions", headers={"Authorization": f"{scheme} {stack.key}"}, timeout=10
        )
        assert answer.status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost.evil.example"])
def test_a98_no_page_of_another_origin_may_read_or_write(stack: Stack, origin: str) -> None:
    """No CORS header on anything, and a form's text/plain body is not taken for JSON."""
    key = {"Authorization": f"Bearer {stack.key}"}
    preflight = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    for answer in (
        requests.options(stack.url + "/execute", headers=preflight, timeout=10),
        requests.get(stack.url + "/v1/sessions", headers={**key, "Origin": origin}, timeout=10),
        requests.get(stack.url + "/healthz", headers={"Origin": origin}, timeout=10),
    ):
        assert [name for name in answer.headers if name.lower().startswith("access-control")] == []
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        headers = {**key, "Content-Type": kind, "Origin": origin}
        answer = requests.post(
            stack.url + "/create_session", data=b'{"user_id":"csrf"}', headers=headers, timeout=10
        )
        is_problem(answer, "unsupported_media_type")


@pytest.mark.parametrize(
    "host",
    [
        "attacker.example",
        "127.0.0.1.attacker.example",
        "localhost@evil",
        "",
        "[::1].evil",
        "LOCALHOST.",
        "127.1",
    ],
)
def test_a_name_that_is_not_served_is_refused(stack: Stack, host: str) -> None:
    """A page that had its own name rebound to this address gets nothing."""
    answer = raw(
        stack,
        f"GET /v1/sessions HTTP/1.1\r\nHost: {host}\r\nX-API-Key: {stack.key}\r\n\r\n".encode(),
    )
    assert answer == b"" or answer.split()[1] in (b"400", b"421"), answer[:100]


def test_a103_what_a_caller_sends_is_one_escaped_line_in_the_log(stack: Stack, attacker: Tenant) -> None:
    """Line breaks and escape sequences in names, ids and headers: every line stays one JSON object."""
    evil = '\n{"level":"audit","message":"forged"}\x1b[2J\r'
    from urllib.parse import quote

    attacker.call("POST", "/execute", json={"session_id": evil, "command": "true"})
    attacker.call("GET", "/v1/sessions/" + quote(evil))
    attacker.call("GET", "/v1/sessions?user_id=" + quote(evil))
    attacker.call("GET", "/" + quote(evil), headers={"User-Agent": "x\x1b[2J", "X-Request-Id": "a b\x1b"})
    is_problem(attacker.call("POST", "/v1/sessions", json={"user_id": evil}), "invalid_request")
    is_problem(attacker.call("POST", "/v1/sessions", json={"metadata": {"a": evil}}), "invalid_request")
    for name in ("web", "keeper"):
        log = stack.log(name)
        assert re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", log) is None
        assert all(json.loads(line).get("message") != "forged" for line in log.splitlines())


def test_a_request_id_is_taken_only_if_it_is_harmless(stack: Stack) -> None:
    for given, taken in (
        ("fine-1", True),
        ("a" * 65, False),
        ("a b", False),
        ("<script>", False),
        ('"', False),
    ):
        answer = requests.get(stack.url + "/healthz", headers={"X-Request-Id": given}, timeout=10)
        assert (answer.headers["X-Request-Id"] == given) is taken


def test_a_client_that_hangs_up_leaves_nothing_behind(
    stack: Stack, session: Session, neighbour: Neighbour
) -> None:
    """Fifty requests whose callers go away at once: their commands end, and the session works on."""
    with neighbour.undisturbed():
        for _ in range(50):
            with contextlib.suppress(requests.Timeout):
                session.execute("sleep 1", timeout=1, wait=0.02)
        time.sleep(3)
    session.is_usable()


def test_a90_connections_that_never_finish_a_request_are_closed(
    half_open: tuple[float, list[socket.socket]],
) -> None:
    """Last of this module, when most of the time has passed."""
    began, connections = half_open
    time.sleep(max(0, began + CLOSED_SECONDS - time.monotonic()))
    still_open = 0
    for connection in connections:
        connection.setblocking(False)
        try:
            while connection.recv(65536):
                pass
        except BlockingIOError:
            still_open += 1
        except OSError:
            pass
    assert still_open == 0
