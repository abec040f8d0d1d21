"""What deploy/nginx.conf keeps out, and how it says so: as a problem with one of our codes, never as HTML."""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from stack import Stack

from server.api.problems import STATUSES, problem_body
from tests.e2e.front import CONF, PATIENCE, Front, fronting, program, until
from tests.e2e.installation import free_port

SLOW_EACH = 200
CUT_SECONDS = 60


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("nginx")
    place.chmod(0o755)
    return program(place)


@pytest.fixture(scope="module")
def front(nginx: str, stack: Stack) -> Iterator[Front]:
    with fronting(nginx, stack.port) as front:
        yield front


@pytest.fixture(scope="module", autouse=True)
def slow(front: Front) -> Iterator[list[ssl.SSLSocket]]:
    """Connections that begin a request and never end it, there from the first test on."""
    with contextlib.ExitStack() as stack:
        begun = []
        context = front.context()
        for beginning in (b"GET / HTTP/1.1\r\nHost: x\r\nX-", half_body(front)):
            for number in range(SLOW_EACH):
                connection = stack.enter_context(front.connect(context, f"127.0.1.{number % 200 + 1}"))
                connection.sendall(beginning)
                begun.append(connection)
        yield begun


def half_body(front: Front) -> bytes:
    head = f"POST /execute HTTP/1.1\r\nHost: 127.0.0.1:{front.tls}\r\nContent-Length: 1000\r\n\r\n"
    return head.encode() + b'{"command": '


def test_who_is_slow_to_send_keeps_nobody_waiting(front: Front, stack: Stack, slow: object) -> None:
    """200 half heads and 200 half bodies are there; a session opens, runs and closes meanwhile."""
    headers = {"Authorization": f"Bearer {stack.key}"}
    with httpx.Client(
        http2=True, verify=front.context("h2"), base_url=front.url, headers=headers, timeout=PATIENCE
    ) as client:
        session = client.post("/create_session", json={}).json()["session_id"]
        for _ in range(20):
            ran = client.post("/execute", json={"session_id": session, "command": "echo served"})
            assert ran.json()["stdout"] == "served\n"
        assert client.post("/cleanup", json={"session_id": session}).status_code == 200


def parsed(answer: bytes) -> tuple[int, dict[str, str], dict[str, object]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert headers["Content-Type"] == "application/problem+json", answer[:300]
    problem = json.loads(body)
    assert (int(first.split()[1]), headers["X-Request-Id"]) == (problem["status"], problem["request_id"])
    assert STATUSES[problem["code"]] == problem["status"]
    return problem["status"], headers, problem


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        ("GARBAGE\r\n\r\n", 400, "malformed_http"),
        ("GET / HTTP/9.9\r\n\r\n", 400, "malformed_http"),
        ("GET / HTTP/1.1\r\n\r\n", 400, "malformed_http"),
        ("GET /%00 HTTP/1.0\r\nHost: x\r\n\r\n", 400, "malformed_http"),
        ("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 400, "malformed_http"),
        (
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nContent-Length: 5\r\n\r\n",
            400,
            "malformed_http",
        ),
        ("TRACE / HTTP/1.0\r\nHost: x\r\n\r\n", 405, "method_not_allowed"),
        (f"POST / HTTP/1.0\r\nHost: x\r\nContent-Length: {81 << 20}\r\n\r\n", 413, "body_too_large"),
        (f"PUT /upload HTTP/1.0\r\nHost: x\r\nContent-Length: {12 << 30}\r\n\r\n", 413, "body_too_large"),
        (f"GET /{'a' * 9000} HTTP/1.1\r\nHost: x\r\n\r\n", 414, "uri_too_long"),
        (f"GET / HTTP/1.1\r\nHost: x\r\nA: {'a' * 9000}\r\n\r\n", 431, "headers_too_large"),
        ("GET / HTTP/1.1\r\nHost: x\r\n" + f"A: {'a' * 4000}\r\n" * 12 + "\r\n", 431, "headers_too_large"),
        ("GET /.problem HTTP/1.0\r\nHost: x\r\n\r\n", 404, "not_found"),
    ],
)
def test_what_nginx_refuses_is_a_problem_with_our_code(
    front: Front, sent: str, status: int, code: str
) -> None:
    found, headers, problem = parsed(front.say(sent.encode()))
    assert (found, problem["code"]) == (status, code)
    assert headers["Strict-Transport-Security"]


def test_too_large_headers_over_http2_end_the_connection_and_nothing_else(front: Front) -> None:
    """nginx gives no answer then, but an error of the protocol's; the next connection works."""
    with httpx.Client(http2=True, verify=front.context("h2"), timeout=PATIENCE) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            client.get(front.url, headers={f"x-{number}": "a" * 4000 for number in range(12)})
        assert client.get(f"{front.url}/healthz").status_code == 200


@pytest.mark.parametrize("path", ["/metrics", "/v1/admin", "/v1/admin/doctor", "/v1/admin/keys"])
@pytest.mark.parametrize("spelling", ["{}", "{}/", "/{}", "/x/..{}", "/.{}", "{}?a", "{}#a", "{}%2f"])
def test_the_operators_paths_are_not_there_for_the_world(front: Front, path: str, spelling: str) -> None:
    """However they are spelt, nginx does not pass them on, not even to somebody on this machine."""
    line = f"GET {spelling.format(path)} HTTP/1.0\r\nHost: 127.0.0.1\r\nX-Request-Id: spelt\r\n\r\n"
    status, headers, problem = parsed(front.say(line.encode()))
    assert (status, problem["code"]) == (404, "not_found")
    assert "Content-Security-Policy" not in headers  # which every answer of the server's own has


def test_a_server_that_dies_in_the_middle_is_a_problem(nginx: str) -> None:
    """The request was sent: it may have run, and the answer must not invite a blind retry."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take_and_die() -> None:
            taken, _ = server.accept()
            taken.recv(65536)
            taken.close()

        threading.Thread(target=take_and_die, daemon=True).start()
        with fronting(nginx, server.getsockname()[1]) as front:
            status, _, problem = parsed(front.say(b"GET /healthz HTTP/1.0\r\nHost: x\r\n\r\n"))
    assert (status, problem["code"], problem["retryable"]) == (502, "no_answer", False)


def test_one_address_cannot_take_all(nginx: str) -> None:
    """Beyond the rate, and beyond the connections, 429 with a Retry-After; another address is served."""
    small = {
        "rate=2000r/s": "rate=1r/s",
        "burst=4000 nodelay": "burst=4 nodelay",
    }
    asked = b"GET /healthz HTTP/1.0\r\nHost: x\r\n\r\n"
    with fronting(nginx, free_port(), small) as front:
        answers = [parsed(front.say(asked)) for _ in range(20)]
        limited = [answer for answer in answers if answer[0] == 429]
        assert limited and {answer[0] for answer in answers} == {429, 503}
        assert (limited[0][1]["Retry-After"], limited[0][2]["code"]) == ("1", "rate_limited")
        assert parsed(front.say(asked, source="127.0.0.9"))[0] == 503


def test_one_address_holds_only_so_many_requests_open(nginx: str) -> None:
    """All of them wait for a body that does not come: further ones of that address are told to come back."""
    text = CONF.read_text().replace(
        "limit_conn sandbox_connections 640;", "limit_conn sandbox_connections 5;"
    )
    asked = b"GET /healthz HTTP/1.0\r\nHost: x\r\n\r\n"
    upload = b"POST /execute HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
    with contextlib.ExitStack() as stack:
        front = stack.enter_context(fronting(nginx, free_port(), text=text))
        for _ in range(5):
            stack.enter_context(front.connect()).sendall(upload)
        until(lambda: parsed(front.say(asked))[0] == 429, "nothing was limited")
        assert parsed(front.say(asked, source="127.0.0.9"))[0] == 503


def test_what_nginx_says_is_what_the_server_would_say() -> None:
    """Type, title, status and whether to try again, for each of its answers."""
    entries = re.findall(r"^    (\d{3}) '(\"type\".*)';$", CONF.read_text(), re.M)
    assert len(entries) == 9
    for status, text in entries:
        told = json.loads(f"{{{text}}}")
        ours = problem_body(told["code"], told["detail"], "", told["retryable"])
        assert {**ours, **told} == {**told, "status": int(status), "request_id": ""}


def test_who_is_too_slow_is_cut(slow: list[ssl.SSLSocket]) -> None:
    """Every one of them, half heads and half bodies alike; they have waited since the first test."""
    left = set(slow)
    deadline = time.monotonic() + CUT_SECONDS
    while left:
        assert time.monotonic() < deadline, f"{len(left)} are still there"
        for connection in select.select(list(left), [], [], 1)[0]:
            if is_over(connection):
                left.discard(connection)


def is_over(connection: ssl.SSLSocket) -> bool:
    try:
        return connection.recv(65536) == b""
    except (ConnectionResetError, ssl.SSLError):
        return True
