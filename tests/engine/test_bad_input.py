"""Bad input over HTTP: each gets a 4xx problem that says what to do, and the session is unharmed.

What the parser alone refuses is tested without a server, in tests/unit/test_parse.py; here is the whole way.
"""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
import requests
from expect import ended, problem, refused
from plain import Open, Session
from stack import Stack

MIB = 1 << 20


def post(stack: Stack, path: str, raw: bytes, **headers: str) -> requests.Response:
    given = {
        "Content-Type": "application/json",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    return stack.call("POST", path, data=raw, headers=given)


def test_no_body(stack: Stack) -> None:
    refused(stack.call("POST", "/execute"), "command")
    refused(stack.call("POST", "/cleanup"), "session_id")


@pytest.mark.parametrize(
    "raw", [b"not json", b"{", b"[]", b'"text"', b"null", b"\xff\xfe{}", b"\xef\xbb\xbf{}"]
)
def test_not_a_json_object(stack: Stack, session: Session, raw: bytes) -> None:
    refused(post(stack, "/execute", raw), "body")
    refused(post(stack, f"/v1/sessions/{session.id}/execute", raw), "body")


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 1_000_000,
        b'{"command": "true", "timeout": ' + b"9" * 1_000_000 + b"}",
        b'{"command": "true", "timeout": NaN}',
        b'{"command": "true", "timeout": 1e999}',
        b'{"command": "true", "command": "false"}',
        b'{"command": "\\ud800"}',
        json.dumps({"command": "true"}).encode("utf-16"),
    ],
    ids=["deep", "long number", "NaN", "1e999", "doubled", "lone surrogate", "utf-16"],
)
def test_treacherous_json(stack: Stack, session: Session, raw: bytes) -> None:
    refused(post(stack, f"/v1/sessions/{session.id}/execute", raw), "body")


def test_a_body_of_another_type(stack: Stack, session: Session) -> None:
    answer = post(
        stack, f"/v1/sessions/{session.id}/execute", b'{"command": "true"}', Content_Type="text/plain"
    )
    problem(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"command": ""}, "command"),
        ({"command": 7}, "command"),
        ({"command": []}, "command"),
        ({"command": ["echo", 7]}, "command"),
        ({"command": "a\0b"}, "command"),
        ({"command": ["a", "b\0"]}, "command"),
        ({"command": ["echo", "x" * 3 * MIB]}, "command"),
        ({"command": ["echo", *["x" * 20] * 100_000]}, "command"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": 1e9}, "timeout"),
        ({"timeout": 1e18}, "timeout"),
        ({"timeout": "abc"}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"env": {"A=B": "1"}}, "env"),
        ({"env": {"A\0": "1"}}, "env"),
        ({"env": {"A\n": "1"}}, "env"),
        ({"env": {f"A{n}": "1" for n in range(10_000)}}, "env"),
        ({"cwd": "/nowhere"}, "cwd"),
        ({"cwd": "/etc/passwd"}, "cwd"),
        ({"cwd": "/" + "x/" * 5000}, "cwd"),
        ({"cwd": "/root"}, "cwd"),
        ({"nonsense": 1}, "nonsense"),
        ({"session_id": "x"}, "session_id"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_field_that_cannot_be(session: Session, fields: dict[str, Any], field: str) -> None:
    refused(session.execute(**{"command": "true", **fields}), field)


def test_ten_thousand_arguments_are_fine(session: Session) -> None:
    assert session.output(["bash", "-c", "echo $#", "name", *["x"] * 10_000]) == "10000\n"


def test_a_tiny_timeout_and_none_are_fine(session: Session) -> None:
    assert session.execute("sleep 5", timeout=0.0001).json()["timed_out"] is True
    assert session.execute("true", timeout=None).json()["exit_code"] == 0


def test_variables_that_change_how_programs_start_reach_the_command_and_not_the_guest(
    session: Session,
) -> None:
    assert session.output("/bin/echo $PATH", env={"PATH": ""}) == "\n"
    loud = session.execute(["/bin/true"], env={"LD_PRELOAD": "/nowhere/evil.so", "PYTHONPATH": "/nowhere"})
    assert "evil.so" in loud.json()["stderr"]
    assert session.output("echo still $PATH").startswith("still /usr")
    assert session.execute("1", language="python").json()["value"] == "1"


def test_a_link_to_the_root_and_a_deleted_directory_as_cwd(session: Session) -> None:
    session.output("mkdir gone; ln -sfn / rooted")
    assert session.output("ls -d etc", cwd="/workspace/rooted") == "etc\n"
    session.output("cd gone && rmdir ../gone", shell="lost")
    assert session.execute("echo here", shell="lost").json()["output"] == "here\n"
    assert session.execute("echo there", shell="lost", cwd="/tmp").json()["output"] == "there\n"
    refused(session.execute("true", cwd="/workspace/gone"), "cwd")


def test_a_missing_session(stack: Stack) -> None:
    for session_id in ("0" * 32, "nope", "../../etc/passwd", "' OR 1=1 --", "x" * 200):
        answer = stack.call("POST", "/execute", json={"session_id": session_id, "command": "true"})
        problem(answer, 404, "session_not_found")
    refused(stack.call("POST", "/execute", json={"command": "true"}), "session_id")


def test_an_ended_session(opened: Open) -> None:
    session = opened()
    session.close()
    ended(session.execute("true"), "closed")


def test_an_image_that_is_not_allowed(stack: Stack) -> None:
    refused(stack.call("POST", "/create_session", json={"image": "evil/image"}), "image")


def test_a_body_of_a_hundred_megabytes(stack: Stack, session: Session) -> None:
    raw = b'{"command": "cat", "stdin": "' + b"x" * 100_000_000 + b'"}'
    problem(post(stack, f"/v1/sessions/{session.id}/execute", raw), 413, "body_too_large")


def test_a_body_of_a_hundred_megabytes_without_a_length(stack: Stack, session: Session) -> None:
    def pieces() -> Any:
        yield b'{"command": "cat", "stdin": "'
        for _ in range(100):
            yield b"x" * 1_000_000

    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {stack.key}"}
    url = f"{stack.url}/v1/sessions/{session.id}/execute"
    problem(requests.post(url, data=pieces(), headers=headers, timeout=60), 413, "body_too_large")


def test_a_chunk_without_a_size(stack: Stack, session: Session) -> None:
    head = f"POST /v1/sessions/{session.id}/execute HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {stack.key}\r\n"
    with socket.create_connection(("127.0.0.1", stack.port), timeout=40) as connection:
        kind = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"
        connection.sendall((head + kind).encode())
        answer = connection.recv(65536)
    assert answer.split()[1] == b"400", answer[:300]


def test_a_body_shorter_than_it_says(stack: Stack, session: Session) -> None:
    host, port = "127.0.0.1", stack.port
    head = f"POST /v1/sessions/{session.id}/execute HTTP/1.1\r\nHost: {host}\r\nX-API-Key: {stack.key}\r\n"
    with socket.create_connection((host, port), timeout=40) as connection:
        connection.sendall((head + "Content-Type: application/json\r\nContent-Length: 500\r\n\r\n{").encode())
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    assert answer == b"" or answer.split()[1] == b"400", answer[:300]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_a_method_that_is_not_there(stack: Stack, method: str) -> None:
    problem(stack.call(method, "/execute"), 405, "method_not_allowed")


def test_a_path_that_is_not_there(stack: Stack) -> None:
    problem(stack.call("GET", "/v1/nothing"), 404, "not_found")


def test_no_key_or_a_wrong_one(stack: Stack) -> None:
    problem(requests.post(f"{stack.url}/create_session", timeout=10), 401, "unauthorized")
    problem(stack.call("POST", "/create_session", key="e2b_" + "0" * 80), 401, "unauthorized")
    problem(stack.call("POST", "/create_session", key=stack.key[:-1]), 401, "unauthorized")


def test_a_revoked_key(stack: Stack) -> None:
    key = stack.new_key("short-lived")
    assert stack.call("GET", "/v1/sessions", key=key).status_code == 200
    stack.ctl("key", "revoke", key)
    problem(stack.call("GET", "/v1/sessions", key=key), 401, "unauthorized")


def test_a_foreign_host_name(stack: Stack) -> None:
    problem(stack.call("GET", "/v1/sessions", headers={"Host": "evil.example"}), 421, "wrong_host")


def test_nothing_of_all_this_failed_on_our_side(stack: Stack) -> None:
    assert "a request failed" not in stack.log("web")
    assert '"status": 500' not in stack.log("web")
