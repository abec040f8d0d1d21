"""Results of megabytes: sent piece by piece, and counted while they are."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator

import pytest
from expect import eventually, problem
from plain import Session
from stack import Stack, running

NOISE = "head -c 1000000 /dev/zero | tr '\\0' '\\377'; head -c 1000000 /dev/zero | tr '\\0' '\\376' >&2"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running(SANDBOX_STREAMS_MAX="4", SANDBOX_WEB_WORKERS="1") as server:
        yield server


@pytest.fixture
def large(session: Session) -> tuple[Session, str]:
    """An execution with a large result; a guest keeps only a few of these."""
    return session, session.execute(NOISE).json()["execution_id"]


def path_of(large: tuple[Session, str]) -> str:
    return f"/v1/sessions/{large[0].id}/executions/{large[1]}"


def streams(stack: Stack) -> int:
    return int(stack.call("GET", "/v1/limits").json()["limits"]["streams"]["used"])


def unread(stack: Stack, path: str) -> socket.socket:
    """Somebody who asks for it and takes nothing of it yet."""
    connection = socket.create_connection(("127.0.0.1", stack.port), timeout=60)
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-API-Key: {stack.key}\r\n\r\n"
    connection.sendall(head.encode())
    return connection


def test_a_large_result_is_whole(stack: Stack, large: tuple[Session, str]) -> None:
    answers = [
        stack.call("GET", path_of(large)).json()["result"],
        large[0].execute(NOISE).json(),
        stack.call("POST", "/run", json={"command": NOISE}).json(),
        stack.call("POST", "/run", json={"command": NOISE}, headers={"Idempotency-Key": "large"}).json(),
        large[0].execute(NOISE, wait=60).json(),
    ]
    for answer in answers:
        assert base64.b64decode(answer["stdout_base64"]) == b"\xff" * 1_000_000
        assert base64.b64decode(answer["stderr_base64"]) == b"\xfe" * 1_000_000
        assert answer["stdout"] == "�" * 1_000_000
    assert streams(stack) == 0


def test_what_was_run_with_a_key_is_told_again_at_any_size(stack: Stack) -> None:
    call = {"json": {"command": "yes | head -c 500000"}, "headers": {"Idempotency-Key": "again"}}
    first, second = (stack.call("POST", "/run", **call) for _ in range(2))
    assert first.json() == second.json() and len(first.json()["stdout"]) == 500_000


def test_a_result_that_nobody_takes_counts_as_a_stream(stack: Stack, large: tuple[Session, str]) -> None:
    """Who leaves them unread gets no more of them, but still what its commands come to."""
    waiting = [unread(stack, path_of(large)) for _ in range(4)]
    try:
        eventually(lambda: streams(stack) == 4)
        assert problem(stack.call("GET", path_of(large)), 429, "too_many_streams")["scope"] == "tenant"
        assert len(large[0].execute(NOISE).json()["stdout"]) == 1_000_000
        assert large[0].output("echo small") == "small\n"
        raw = b"".join(iter(lambda: waiting[0].recv(1 << 20), b""))
        assert raw.startswith(b"HTTP/1.1 200") and raw.endswith(b"0\r\n\r\n"), "and all of it, later"
    finally:
        for connection in waiting:
            connection.close()
    eventually(lambda: streams(stack) == 0)
