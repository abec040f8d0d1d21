"""The server's side of the wire, facing a guest that has gone bad: no hanging, nothing unforeseen."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from expect import eventually

from server import errors
from server.guest import protocol
from server.guest_answers import Answer
from server.guest_client import Command, GuestClient, GuestSilent, Sandbox
from server.spool import Spool

SECRET = b"secret"
EMPTY = {"stdout": [0, 0, 0], "stderr": [0, 0, 0]}
GOOD = {
    "ok": True,
    "exit_code": 0,
    "signal": None,
    "timed_out": False,
    "cancelled": False,
    "oom_killed": False,
    "disk_full": False,
    "restarted": False,
    "cwd": "/",
    "seconds": 0.1,
    "cpu_seconds": 0.01,
    "peak_memory": None,
    "sizes": EMPTY,
    "value": None,
    "error": None,
    "artifacts": [],
    "artifacts_truncated": False,
}
ARTIFACT = {"path": "artifacts/x", "size": 1, "sha256": None}
Say = Callable[[socket.socket], None]


class BadGuest:
    """Listens like a guest; says what the test wants it to say."""

    def __init__(self, path: Path) -> None:
        self.sandbox = Sandbox("b" * 32, f"unix:{path}", SECRET)
        self.hello: dict[str, Any] = {}
        self.answers: list[tuple[Any, bytes] | Say] = []
        self.asked = 0
        self.hangs_up = False
        self.connections = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while True:
                    head, _ = protocol.receive(connection, protocol.TO_GUEST)
                    if head["verb"] == "hello":
                        proof = protocol.prove(SECRET, head["nonce"])
                        protocol.send(
                            connection,
                            {"ok": True, "version": protocol.VERSION, "proof": proof, **self.hello},
                        )
                        continue
                    self.asked += 1
                    answer = self.answers.pop(0)
                    if callable(answer):
                        answer(connection)
                        return
                    protocol.send(connection, *answer)
                    if self.hangs_up:
                        return
            except (OSError, EOFError, protocol.FrameError):
                return

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def bad(tmp_path: Path) -> Iterator[BadGuest]:
    guest = BadGuest(tmp_path / "guest.sock")
    yield guest
    guest.close()


@pytest.fixture
def client(bad: BadGuest) -> Iterator[GuestClient]:
    client = GuestClient(1000, 8)
    yield client
    client.forget(bad.sandbox.id)


def run(client: GuestClient, bad: BadGuest, timeout: float = 1) -> Answer:
    return client.run(bad.sandbox, "id", "", Command("true", timeout))


def test_a_good_answer_is_understood(client: GuestClient, bad: BadGuest) -> None:
    bad.answers = [({**GOOD, "sizes": {**EMPTY, "stdout": [2, 1, 9]}}, b"abc")]
    answer = run(client, bad)
    assert (answer.stdout.first, answer.stdout.last, answer.stdout.total) == (b"ab", b"c", 9)
    assert answer.output == answer.stdout


@pytest.mark.parametrize(
    "hello", [{"proof": "0" * 64}, {"proof": None}, {"proof": "é"}, {"proof": 7}, {"proof": ["x"]}]
)
def test_a_guest_that_cannot_prove_itself_gets_no_command(
    client: GuestClient, bad: BadGuest, hello: dict[str, Any]
) -> None:
    bad.hello = hello
    with pytest.raises(GuestSilent):
        run(client, bad)
    assert bad.asked == 0


@pytest.mark.parametrize(
    "version", [0, protocol.VERSION - 1, protocol.VERSION + 1, None, str(protocol.VERSION)]
)
def test_a_guest_of_another_version_is_a_clear_error(
    client: GuestClient, bad: BadGuest, version: object
) -> None:
    bad.hello = {"version": version}
    with pytest.raises(errors.GuestUnavailable, match="another version"):
        run(client, bad)


@pytest.mark.parametrize(
    "change",
    [
        {"exit_code": 256},
        {"exit_code": -1},
        {"exit_code": True},
        {"exit_code": "0"},
        {"signal": 9},
        {"cwd": ["/"]},
        {"seconds": "long"},
        {"seconds": None},
        {"sizes": []},
        {"sizes": {"stdout": [0, 0, 0]}},
        {"sizes": {**EMPTY, "stdout": [1, 0, 1]}},
        {"sizes": {**EMPTY, "stdout": [0, 0]}},
        {"sizes": {**EMPTY, "stdout": [-5, 5, 0]}},
        {"sizes": {**EMPTY, "stdout": [0, 0, 1 << 70]}},
        {"sizes": {**EMPTY, "both": 5}},
        {"value": {"__class__": "os.system"}},
        {"error": "text"},
        {"error": {"name": "x"}},
        {"error": {"name": 1, "message": 2, "traceback": 3}},
        {"artifacts": None},
        {"artifacts": {"path": "artifacts/x"}},
        {"artifacts": ["artifacts/x"]},
        {"artifacts": [{**ARTIFACT, "path": "/etc/passwd"}]},
        {"artifacts": [{**ARTIFACT, "path": "artifacts"}]},
        {"artifacts": [{**ARTIFACT, "path": "artifacts/../../x"}]},
        {"artifacts": [{**ARTIFACT, "path": "artifacts//x"}]},
        {"artifacts": [{**ARTIFACT, "path": "artifacts/\0"}]},
        {"artifacts": [{**ARTIFACT, "path": "artifacts/\u2603"}]},
        {"artifacts": [{**ARTIFACT, "path": "artifacts/" + "x" * 5000}]},
        {"artifacts": [{**ARTIFACT, "path": 7}]},
        {"artifacts": [{**ARTIFACT, "size": -1}]},
        {"artifacts": [{**ARTIFACT, "size": 1 << 70}]},
        {"artifacts": [{**ARTIFACT, "sha256": "<script>"}]},
        {"artifacts": [ARTIFACT] * 101},
        {"artifacts": [{}]},
    ],
    ids=lambda change: str(change)[:80],
)
def test_an_answer_that_makes_no_sense_is_told_as_such(
    client: GuestClient, bad: BadGuest, change: dict[str, Any]
) -> None:
    bad.answers = [({**GOOD, **change}, b"")]
    with pytest.raises(errors.GuestUnavailable):
        run(client, bad)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -5.0])
def test_a_duration_is_a_number_that_json_knows(client: GuestClient, bad: BadGuest, seconds: float) -> None:
    bad.answers = [({**GOOD, "seconds": seconds}, b"")]
    with contextlib.suppress(errors.GuestUnavailable):  # refusing it is as good
        assert 0 <= run(client, bad).seconds < 1e9


@pytest.mark.parametrize("code", [None, 7, "no_such_code", "internal_error", ["x"]])
def test_a_refusal_with_an_unknown_code_is_told_as_unavailable(
    client: GuestClient, bad: BadGuest, code: object
) -> None:
    bad.answers = [({"ok": False, "code": code}, b"")]
    with pytest.raises(errors.GuestUnavailable):
        run(client, bad)


@pytest.mark.parametrize("raw", [b"\xff" * 8, b"\0\0\0\2\0\0\0\0[]", b"\0\0\0\2\0\xff\xff\xff{}", b"\0"])
def test_a_guest_that_answers_garbage_is_silent(client: GuestClient, bad: BadGuest, raw: bytes) -> None:
    bad.answers = [lambda connection: connection.sendall(raw)] * 2
    with pytest.raises(GuestSilent):
        run(client, bad)


def test_a_guest_that_never_answers_is_given_up(
    client: GuestClient, bad: BadGuest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.guest_client._ANSWER_GRACE", 0.2)
    bad.answers = [lambda connection: time.sleep(3)]
    with pytest.raises(errors.GuestUnavailable):
        run(client, bad, timeout=0.1)


def test_a_guest_that_answers_a_byte_at_a_time_is_given_up_too(
    client: GuestClient, bad: BadGuest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.guest_client._ANSWER_GRACE", 0.2)

    def drip(connection: socket.socket) -> None:
        connection.sendall(b"\0\0\1\0\0\0\0\0")
        for _ in range(30):
            connection.sendall(b" ")
            time.sleep(0.1)

    bad.answers = [drip]
    began = time.monotonic()
    with pytest.raises(errors.GuestUnavailable):
        run(client, bad, timeout=0.1)
    assert time.monotonic() - began < 1.5


def test_a_kept_connection_that_died_is_replaced_without_the_caller_knowing(
    client: GuestClient, bad: BadGuest
) -> None:
    bad.answers = [(GOOD, b""), lambda connection: None, (GOOD, b"")]
    assert run(client, bad).exit_code == 0
    assert run(client, bad).exit_code == 0
    assert bad.asked == 3


LARGE = b"x" * (2 << 20)


def test_who_asks_after_a_greeting_uses_that_connection(client: GuestClient, bad: BadGuest) -> None:
    bad.answers = [(GOOD, b"")] * 2
    client.greet(bad.sandbox)
    client.greet(bad.sandbox)  # once is enough
    assert run(client, bad).exit_code == 0
    client.meet(bad.sandbox)  # nothing to do any more
    assert run(client, bad).exit_code == 0
    assert bad.connections == 1


def test_when_nobody_asks_the_greeted_is_met_and_the_connection_kept(
    client: GuestClient, bad: BadGuest
) -> None:
    bad.answers = [(GOOD, b"")]
    client.greet(bad.sandbox)
    client.meet(bad.sandbox)
    assert run(client, bad).exit_code == 0
    assert bad.connections == 1


def test_a_guest_that_was_greeted_and_cannot_prove_itself_is_asked_again_and_gets_no_command(
    client: GuestClient, bad: BadGuest
) -> None:
    bad.hello = {"proof": "0" * 64}
    client.greet(bad.sandbox)
    with pytest.raises(GuestSilent):
        run(client, bad)
    assert (bad.asked, bad.connections) == (0, 2)


def test_a_greeting_is_forgotten_with_the_sandbox(client: GuestClient, bad: BadGuest) -> None:
    client.greet(bad.sandbox)
    client.forget(bad.sandbox.id)
    client.meet(bad.sandbox)
    bad.answers = [(GOOD, b"")]
    assert run(client, bad).exit_code == 0
    assert bad.connections == 2


def test_a_large_stdin_is_off_the_disk_once_it_is_sent(client: GuestClient, bad: BadGuest) -> None:
    """Commands take their time: hundreds of them would fill the disk."""
    spool = Spool()

    def slow(connection: socket.socket) -> None:
        eventually(lambda: spool.waiting("a") == 0, 5)
        protocol.send(connection, GOOD)

    bad.answers = [slow]
    stdin = spool.hold("a", LARGE)
    assert spool.waiting("a") == len(LARGE)
    assert client.run(bad.sandbox, "id", "", Command("cat", 5, stdin=stdin)).exit_code == 0


def test_a_large_stdin_is_sent_again_when_a_kept_connection_was_dead(
    client: GuestClient, bad: BadGuest
) -> None:
    bad.answers, bad.hangs_up = [(GOOD, b""), (GOOD, b"")], True
    assert run(client, bad).exit_code == 0
    stdin = Spool().hold("a", LARGE)
    assert client.run(bad.sandbox, "id", "", Command("cat", 1, stdin=stdin)).exit_code == 0


def test_guests_that_take_no_stdin_cannot_fill_the_disk() -> None:
    """What a tenant may have waiting has an end, and others have theirs."""
    spool = Spool(3 * len(LARGE))
    held = [spool.hold("a", LARGE) for _ in range(3)]
    with pytest.raises(errors.ServerBusy):
        spool.hold("a", LARGE)
    assert spool.hold("a", b"small") == b"small"
    spool.hold("b", LARGE)
    held.pop()
    spool.hold("a", LARGE)


def test_a_socket_replaced_by_a_link_is_not_followed(
    client: GuestClient, bad: BadGuest, tmp_path: Path
) -> None:
    os.symlink(tmp_path / "guest.sock", tmp_path / "link.sock")
    lured = Sandbox("c" * 32, f"unix:{tmp_path / 'link.sock'}", SECRET)
    with pytest.raises(GuestSilent):
        client.run(lured, "id", "", Command("true", 1))


@pytest.mark.parametrize("kind", ["file", "fifo", "directory", "nothing"])
def test_what_is_no_socket_is_not_opened(client: GuestClient, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "other"
    {"file": path.touch, "fifo": lambda: os.mkfifo(path), "directory": path.mkdir, "nothing": lambda: None}[
        kind
    ]()
    with pytest.raises(GuestSilent):
        client.run(Sandbox("d" * 32, f"unix:{path}", SECRET), "id", "", Command("true", 1))
