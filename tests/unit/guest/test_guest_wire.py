"""Who may speak to a guest, and what it makes of words that it does not know."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import time

import pytest
from expect import eventually
from guest_process import SECRET, UID, GuestProcess, text

from server import errors
from server.guest import protocol
from server.guest_client import GuestSilent

ANY = protocol.Limits(1 << 20, 1 << 20)
RUN = {
    "verb": "run",
    "execution": "e",
    "fingerprint": "",
    "command": "echo ran",
    "timeout": 5,
    "language": "bash",
    "shell": "main",
    "cwd": None,
    "env": {},
    "stdin": False,
}


def ask(connection: socket.socket, head: object, body: bytes = b"") -> protocol.Head:
    protocol.send(connection, head, body)  # type: ignore[arg-type]
    return protocol.receive(connection, ANY)[0]


def hung_up(connection: socket.socket) -> bool:
    """The guest closed this connection, and only this one."""
    connection.settimeout(5)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_hello_tells_the_version_proves_the_secret_and_says_if_it_is_bound(unbound: GuestProcess) -> None:
    with unbound.connection() as connection:
        answer = ask(connection, {"verb": "hello", "nonce": "n"})
    proof = protocol.prove(SECRET, "n")
    assert answer == {"ok": True, "version": protocol.VERSION, "proof": proof, "bound": False}


def test_the_guest_is_pid_1_of_its_namespace(guest: GuestProcess) -> None:
    assert "python3" in text(guest.run("cat /proc/1/comm"))


def test_a_guest_that_is_not_bound_runs_nothing(unbound: GuestProcess) -> None:
    with unbound.connection() as connection:
        assert ask(connection, RUN) == {"ok": False, "code": "not_bound"}


def test_a_guest_can_be_bound_once(guest: GuestProcess) -> None:
    guest.bind()  # the same again is fine: the keeper may have lost the answer
    with pytest.raises(errors.GuestUnavailable):
        guest.bind(uid=UID + 1)
    assert text(guest.run("id -u")) == f"{UID}\n"


def test_the_sandboxed_program_cannot_speak_to_the_guest(guest: GuestProcess) -> None:
    """The directory is closed to it; and whoever is inside the namespace is turned away at once."""
    sock = guest.dir / "run" / "guest.sock"
    code = (
        f"import socket\ns = socket.socket(socket.AF_UNIX)\ns.settimeout(3)\ns.connect('{sock}')\ns.recv(9)"
    )
    denied = guest.python(code)
    assert denied.error is not None and denied.error["name"] == "PermissionError"
    (guest.dir / "run").chmod(0o777)
    sock.chmod(0o777)
    assert guest.python(code).value == "b''"


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "head over the cap": struct.pack(">II", 0xFFFFFFFF, 0),
    "body over the cap": struct.pack(">II", 2, 0xFFFFFFFF) + b"{}",
    "not json": struct.pack(">II", 3, 0) + b"{]}",
    "a list": struct.pack(">II", 2, 0) + b"[]",
    "not utf-8": struct.pack(">II", 2, 0) + b"\xff\xfe",
    "deep": struct.pack(">II", 200_000, 0) + b"[" * 200_000,
}


def test_garbage_ends_its_connection_and_nothing_else(guest: GuestProcess) -> None:
    for name, raw in GARBAGE.items():
        with guest.connection() as connection:
            connection.sendall(raw)
            assert hung_up(connection), name
        assert text(guest.run("echo alive")) == "alive\n"


BINDING = {"uid": "root", "gid": 0, "processes": 1, "env": {}, "executions": 1, "output_limit": 1}
SENSELESS: list[dict[str, object]] = [
    {"verb": "format-disk"},
    {"verb": None},
    {},
    {"verb": "run"},
    {**RUN, "language": "cobol"},
    {**RUN, "timeout": "soon"},
    {**RUN, "timeout": None},
    {**RUN, "env": ["A"]},
    {**RUN, "env": {"A": 1}},
    {**RUN, "command": [], "shell": None},
    {**RUN, "command": ["a", 7], "shell": None},
    {**RUN, "command": "a\0b", "shell": None},
    {**RUN, "shell": ["x"]},
    {**RUN, "cwd": 7},
    {**RUN, "cwd": "/\0", "shell": None},
    {"verb": "bind"},
    {"verb": "bind", **BINDING},
]


def test_a_senseless_request_is_refused_or_dropped_and_the_guest_goes_on(guest: GuestProcess) -> None:
    for head in SENSELESS:
        began = time.monotonic()
        with guest.connection() as connection:
            connection.settimeout(5)
            with contextlib.suppress(EOFError, protocol.FrameError, ConnectionResetError):
                assert ask(connection, head)["ok"] is False, head
        assert text(guest.run("echo alive")) == "alive\n"
        assert time.monotonic() - began < 3, head
    assert guest.process.poll() is None


def test_half_a_frame_holds_up_nobody(guest: GuestProcess) -> None:
    with guest.connection() as half, guest.connection() as silent:
        half.sendall(struct.pack(">II", 100, 0) + b'{"verb"')
        assert text(guest.run("echo alive")) == "alive\n"
        assert silent.fileno() > 0


def test_many_connections_are_bounded_and_given_back(guest: GuestProcess) -> None:
    with contextlib.ExitStack() as opened:
        for _ in range(300):
            with contextlib.suppress(GuestSilent):
                opened.enter_context(guest.connection())

    def answers() -> bool:
        try:
            return text(guest.run("echo alive")) == "alive\n"
        except (GuestSilent, errors.GuestUnavailable):
            return False

    eventually(answers)


def test_sigterm_ends_the_guest_with_the_code_that_means_stopped_by_the_engine(guest: GuestProcess) -> None:
    children = subprocess.run(["pgrep", "-P", str(guest.process.pid)], capture_output=True, text=True).stdout
    subprocess.run(["kill", "-TERM", children.split()[0]], check=True)
    assert guest.process.wait(timeout=5) == 75
