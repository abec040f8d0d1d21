"""Attacks with uploads (A56): lying lengths, endless bodies, swarms of parts. Nothing of them stays."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from invariants import Neighbour, Tenant, eventually, footprint, is_problem, tells_no_secret
from stack import Stack

MIB = 1 << 20
KIND = "multipart/form-data; boundary=frontier"
BEGIN = b'--frontier\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
END = b"\r\n--frontier--\r\n"


@pytest.fixture(autouse=True)
def nothing_stays(stack: Stack) -> Iterator[None]:
    place = stack.dir / "state" / "uploads"
    assert os.listdir(place) == []
    yield

    def check() -> None:
        assert os.listdir(place) == []

    eventually(check, 10)


@pytest.fixture(autouse=True, scope="module")
def nothing_is_reserved(stack: Stack) -> Iterator[None]:
    """After all of it the whole quota can be used."""
    yield
    files = [("file", ("f", b"x" * (30 * MIB)))]
    answers = [stack.call("POST", "/upload", files=files) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    for answer in answers:
        gone = stack.call("DELETE", f"/v1/uploads/{answer.json()['files'][0]['file_id']}")
        assert gone.status_code == 204


def head(stack: Stack, *lines: str) -> bytes:
    first = ["POST /upload HTTP/1.1", "Host: localhost", f"X-API-Key: {stack.key}", f"Content-Type: {KIND}"]
    return "\r\n".join([*first, *lines, "", ""]).encode()


def spoken(stack: Stack, begin: bytes, more: Iterator[bytes], seconds: float = 40) -> bytes:
    """What comes back to who sends as long as it may, and closes its end when there is no more."""
    with socket.create_connection(("127.0.0.1", stack.port), timeout=seconds) as connection:
        try:
            connection.sendall(begin)
            for piece in more:
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # hung up on
        received = b""
        try:
            while chunk := connection.recv(65536):
                received += chunk
        except (TimeoutError, ConnectionResetError):
            pass
    tells_no_secret(received.decode("latin-1"))
    return received


def statuses(answer: bytes) -> list[bytes]:
    return re.findall(rb"HTTP/1\.\d (\d{3}) ", answer)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def test_a56_a_body_shorter_than_its_length(stack: Stack, neighbour: Neighbour) -> None:
    for body in (BEGIN + b"x" * 100_000, BEGIN + b"x" * 100_000 + END, b""):
        with neighbour.undisturbed():
            answer = spoken(stack, head(stack, f"Content-Length: {len(body) + 1}"), iter([body]))
        assert set(statuses(answer)) <= {b"400"}


def test_a56_a_body_longer_than_its_length(stack: Stack) -> None:
    """The rest is not taken for a request of its own."""
    body = BEGIN + b"x" * 1000 + END
    answer = spoken(
        stack, head(stack, "Content-Length: 500"), iter([body, b"GET /v1/version HTTP/1.1\r\n\r\n"])
    )
    assert set(statuses(answer)) == {b"400"}
    assert b"guest_protocol" not in answer


def endless(piece: bytes, given_up: list[bool]) -> Iterator[bytes]:
    """For so long that whoever has sent all of it was not ended by the server."""
    until = time.monotonic() + (3 if piece == BYTES else 15)
    while time.monotonic() < until:
        yield piece
    given_up.append(True)


BYTES = chunk(b"x") * 10_000


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (chunk(BEGIN), chunk(b"x" * MIB)),
        (chunk(BEGIN), chunk(b"\r" * MIB)),
        (chunk(BEGIN), chunk(b"\r\n--frontie" * 6000)),
        (chunk(BEGIN), BYTES),
        (b"", chunk(b"x" * MIB)),
        (chunk(BEGIN + END), chunk(b"x" * MIB)),
        (b"", chunk(BEGIN + b"x\r\n") * 100),
        (chunk(BEGIN[:-2]), chunk(b"X-Header: y\r\n" * 100)),
    ],
    ids=["a file", "returns", "almost boundaries", "bytes", "preamble", "epilogue", "parts", "headers"],
)
def test_a56_what_never_ends_is_ended(stack: Stack, neighbour: Neighbour, begin: bytes, piece: bytes) -> None:
    """Memory stays flat meanwhile, and others are answered as ever. What is no more than slow may go on."""
    given_up: list[bool] = []
    with neighbour.undisturbed():
        first = head(stack, "Transfer-Encoding: chunked") + begin
        answer = spoken(stack, first, endless(piece, given_up))
    assert given_up == ([True] if piece == BYTES else [])
    assert set(statuses(answer)) <= {b"400", b"413", b"429"}, answer[:200]


def test_a56_memory_stays_flat_under_many_large_uploads_at_once(
    stack: Stack, attacker: Tenant, neighbour: Neighbour
) -> None:
    """Eight of 30 MiB each: some fit into the quota, the others are told so; none is held in memory."""
    before = footprint(stack)
    grown: list[int] = []
    answers: list[int] = []
    ids: list[str] = []

    def send() -> None:
        answer = attacker.call("POST", "/upload", files=[("file", ("f", b"x" * (30 * MIB)))])
        answers.append(answer.status_code)
        if answer.status_code == 201:
            ids.append(answer.json()["files"][0]["file_id"])
        else:
            is_problem(answer, "too_many_uploads")

    senders = [threading.Thread(target=send) for _ in range(8)]
    with neighbour.undisturbed():
        for sender in senders:
            sender.start()
        while any(sender.is_alive() for sender in senders):
            now = footprint(stack)
            grown.append(max(now[pid][0] - before[pid][0] for pid in before))
            time.sleep(0.02)
    assert max(grown) < 24 * MIB, f"{max(grown) >> 20} MiB"
    assert 1 <= answers.count(201) <= 2 and set(answers) <= {201, 429}
    for upload in ids:
        assert attacker.call("DELETE", f"/v1/uploads/{upload}").status_code == 204


@pytest.mark.parametrize(
    ("kind", "body", "codes"),
    [
        (KIND, (BEGIN + b"x\r\n") * 10_000 + END[2:], ["body_too_large"]),
        (KIND, (BEGIN + b"\r\n") * 101 + END[2:], ["body_too_large"]),
        (KIND, BEGIN + b"x" * (32 * MIB + 1) + END, ["too_large"]),
        (KIND, BEGIN + b"x" * (34 * MIB) + END, ["too_large"]),
        (KIND, BEGIN + b"x", ["invalid_request"]),
        (KIND.partition(";")[0], BEGIN + b"x" + END, ["invalid_request"]),
        (KIND.replace("frontier", "another"), BEGIN + b"x" + END, ["invalid_request"]),
        ("multipart/mixed; boundary=frontier", BEGIN + b"x" + END, ["unsupported_media_type"]),
    ],
    ids=["10,000", "101", "one byte more", "too large", "no end", "no boundary", "another boundary", "mixed"],
)
def test_a56_what_is_too_much_or_no_upload_is_refused(
    attacker: Tenant, kind: str, body: bytes, codes: list[str]
) -> None:
    is_problem(attacker.call("POST", "/upload", data=body, headers={"Content-Type": kind}), *codes)


def test_a_key_that_is_revoked_sends_nothing_more(stack: Stack) -> None:
    key = stack.new_key("short-lived")
    begin = head(stack, "Content-Length: 30000000").replace(stack.key.encode(), key.encode())
    with socket.create_connection(("127.0.0.1", stack.port), timeout=20) as connection:
        connection.sendall(begin + BEGIN + b"x" * 500_000)
        stack.ctl("key", "revoke", key.removeprefix("e2b_")[:16])
        assert b" 401 " in connection.recv(4096)


def test_a100_who_hangs_up_in_the_middle_leaves_nothing(stack: Stack, neighbour: Neighbour) -> None:
    with neighbour.undisturbed():
        for _ in range(20):
            connection = socket.create_connection(("127.0.0.1", stack.port), timeout=10)
            connection.sendall(head(stack, "Content-Length: 10000000") + BEGIN + b"x" * 500_000)
            connection.close()


def test_a103_names_are_data(attacker: Tenant, stack: Stack) -> None:
    """In an answer, a log line and a workspace alike."""
    strange = 'x\\"; evil=\\"1\r\n{"level":"audit"}\x1b[31m\u202e/../../etc/cron.d/job'
    body = BEGIN.replace(b'filename="f"', b'filename="' + strange.encode() + b'"') + b"x" + END
    answer = attacker.call("POST", "/upload", data=body, headers={"Content-Type": KIND})
    if answer.status_code == 201:
        [file] = answer.json()["files"]
        assert file["name"].isprintable() and "/" not in file["name"]
        attacker.call("DELETE", f"/v1/uploads/{file['file_id']}")
    else:
        is_problem(answer, "invalid_request")
    assert "\x1b" not in stack.log("web")
