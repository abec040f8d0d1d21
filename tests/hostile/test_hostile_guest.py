"""Attacks on the guest (A40 to A44), and on the server through a guest that was taken over."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from invariants import Neighbour, Session, Tenant, is_problem

from server.guest import protocol

PROBE = r"""
import ctypes, errno, json, os, resource, signal, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    ctypes.set_errno(0)
    return errno.errorcode.get(ctypes.get_errno(), "EPERM?") if getattr(libc, name)(*args) < 0 else "allowed"
def attempt(action):
    try: action()
    except OSError as exc: return errno.errorcode[exc.errno]
    return "allowed"
def write(path):
    fd = os.open(path, os.O_WRONLY)
    try: os.write(fd, b'0')
    finally: os.close(fd)
def connect(path):
    with socket.socket(socket.AF_UNIX) as s: s.connect(path)
found = {f"kill {n}": attempt(lambda: os.kill(1, n)) for n in (9, 19, 15, 18, 2, 1)}
for name in "mem maps environ root cwd exe ns/mnt auxv stack syscall io".split():
    found["open " + name] = attempt(lambda: os.close(os.open("/proc/1/" + name, os.O_RDONLY)))
found["list fd"] = attempt(lambda: os.listdir("/proc/1/fd"))
found["ptrace attach"] = call("ptrace", 16, 1, 0, 0)
found["ptrace seize"] = call("ptrace", 0x4206, 1, 0, 0)
buffer = (ctypes.c_ulong * 2)(ctypes.addressof(ctypes.create_string_buffer(8)), 8)
found["process_vm_readv"] = call("process_vm_readv", 1, buffer, 1, buffer, 1, 0)
found["prlimit"] = attempt(lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (1, 1)))
found["renice"] = attempt(lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
found["taskset"] = attempt(lambda: os.sched_setaffinity(1, {0}))
found["scheduler"] = attempt(lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)))
for name in ("oom_score_adj", "coredump_filter", "comm", "clear_refs", "timerslack_ns", "autogroup"):
    found["write " + name] = attempt(lambda: write("/proc/1/" + name))
found["list socket directory"] = attempt(lambda: os.listdir("/run/sandbox"))
found["connect"] = attempt(lambda: connect("/run/sandbox/guest.sock"))
found["unlink"] = attempt(lambda: os.unlink("/run/sandbox/guest.sock"))
found["secret"] = attempt(lambda: open("/run/sandbox/secret").read())
found["create"] = attempt(lambda: open("/run/sandbox/x", "w"))
found["replace the guest's code"] = attempt(lambda: open("/opt/sandbox/guest/main.py", "a"))
found["pidfd"] = attempt(lambda: signal.pidfd_send_signal(os.pidfd_open(1), 9))
print(json.dumps(found))
"""


@pytest.fixture
def session(attacker: Tenant) -> Session:
    """To whose guest nobody is connected: opening connects to it, going back to a snapshot does not."""
    session = attacker.open()
    at = f"/v1/sessions/{session.id}"
    taken = attacker.call("POST", f"{at}/snapshots", json={}).json()["snapshot_id"]
    restored = attacker.call("POST", f"{at}/restore", json={"snapshot_id": taken})
    assert restored.status_code == 200, restored.text
    attacker.call("DELETE", f"{at}/snapshots/{taken}")
    return session


def test_a40_to_a43_the_guest_cannot_be_touched(session: Session) -> None:
    """Signals, ptrace, memory, limits, priorities and files of PID 1: all refused."""
    found = json.loads(session.run(["python3", "-c", PROBE])["stdout"])
    assert {
        name: told for name, told in found.items() if told not in ("EPERM", "EACCES", "ENOENT", "EROFS")
    } == {}
    session.is_usable()


def test_a40_a_kill_of_everything_leaves_the_guest(session: Session) -> None:
    for command in ("kill -9 -1", "kill -STOP -1", "kill -TERM 1; kill -9 1"):
        session.execute(command, timeout=1)
        session.is_usable()


def test_a42_a_socket_with_loosened_permissions_still_refuses_the_inside(session: Session) -> None:
    """The guest looks at who is calling: a process inside the sandbox has a pid there."""
    run = session.directory / "run"
    try:
        run.chmod(0o777)
        (run / "guest.sock").chmod(0o777)
        code = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/sandbox/guest.sock')\n"
        code += "s.settimeout(2)\n"
        code += "try:\n    s.sendall(b'x' * 8); print(s.recv(10))\nexcept OSError as e: print('refused', e)"
        told = session.run(["python3", "-c", code])["stdout"]
        assert told.startswith(("refused", "b''"))
    finally:
        run.chmod(0o2750)
        (run / "guest.sock").chmod(0o660)
    session.is_usable()


def serve(listener: socket.socket, answer: Callable[[socket.socket], None]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_quietly, args=(answer, connection), daemon=True).start()


def _quietly(answer: Callable[[socket.socket], None], connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError, EOFError, protocol.FrameError):
        answer(connection)


@contextmanager
def impostor(session: Session, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """Somebody else answers at the guest's socket, as in a guest that was taken over."""
    path = session.directory / "run" / "guest.sock"
    kept = path.with_name("kept")
    path.rename(kept)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o777)
        listener.listen(64)
        threading.Thread(target=serve, args=(listener, answer), daemon=True).start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            path.unlink()
            kept.rename(path)


def test_a44_a_link_in_place_of_the_socket_is_not_followed(session: Session, tmp_path: Path) -> None:
    """A guest that was taken over points its socket at another service of the host: nobody connects to it."""
    path = session.directory / "run" / "guest.sock"
    kept, reached = path.with_name("kept"), threading.Event()
    with socket.socket(socket.AF_UNIX) as victim:
        victim.bind(str(tmp_path / "victim"))
        os.chmod(tmp_path / "victim", 0o777)
        victim.listen()
        threading.Thread(target=serve, args=(victim, lambda _: reached.set()), daemon=True).start()
        path.rename(kept)
        path.symlink_to(tmp_path / "victim")
        try:
            is_problem(session.execute("echo hi", timeout=1), "guest_unavailable")
        finally:
            path.unlink()
            kept.rename(path)
        victim.shutdown(socket.SHUT_RDWR)
    assert not reached.is_set()
    session.is_usable()


def test_a44_a_socket_of_another_sandbox_does_not_pass_for_this_one(
    session: Session, neighbour: Neighbour
) -> None:
    """Each guest proves a secret of its own, so a command never runs in the wrong sandbox."""
    path, kept = session.directory / "run" / "guest.sock", session.directory / "run" / "kept"
    path.rename(kept)
    os.link(neighbour.session.directory / "run" / "guest.sock", path)
    try:
        is_problem(session.execute("touch /workspace/intruder", timeout=1), "guest_unavailable")
    finally:
        path.unlink()
        kept.rename(path)
    assert neighbour.session.run("ls -A /workspace")["stdout"] == ""


def proving(session: Session, then: Callable[[socket.socket], None]) -> Callable[[socket.socket], None]:
    """Knows the secret, as a guest that was taken over does; what follows the greeting is up to `then`."""
    secret = (session.directory / "run" / "secret").read_bytes()

    def answer(connection: socket.socket) -> None:
        head, _ = protocol.receive(connection, protocol.TO_GUEST)
        proof = protocol.prove(secret, str(head["nonce"]))
        protocol.send(connection, {"ok": True, "version": protocol.VERSION, "proof": proof})
        protocol.receive(connection, protocol.TO_GUEST)
        then(connection)

    return answer


GOOD: dict[str, Any] = {
    "ok": True,
    "exit_code": 0,
    "signal": None,
    "timed_out": False,
    "oom_killed": False,
    "restarted": False,
    "cwd": "/",
    "seconds": 1.0,
    "sizes": {"stdout": [0, 0, 0], "stderr": [0, 0, 0]},
    "value": None,
    "error": None,
}


@pytest.mark.parametrize(
    "lie",
    [
        {"exit_code": 300},
        {"exit_code": "0"},
        {"signal": 9},
        {"cwd": []},
        {"seconds": "x"},
        {"seconds": 1e999},
        {"sizes": {}},
        {"sizes": {"stdout": [5, 5, -1], "stderr": [0, 0, 0]}},
        {"sizes": {"stdout": [1 << 40, 0, 0], "stderr": [0, 0, 0]}},
        {"ok": 1},
        {"ok": False, "code": "__class__"},
        {"ok": False, "code": {"a": 1}},
        {"error": {"name": 1}},
        {"value": {}},
        {"sizes": []},
        {"sizes": {"stdout": [True, 0, 0], "stderr": [0, 0, 0]}},
    ],
    ids=repr,
)
def test_an_answer_that_makes_no_sense_is_a_problem_of_that_session_alone(
    session: Session, neighbour: Neighbour, lie: dict[str, Any]
) -> None:
    """What a guest says is checked, whatever it says."""
    with impostor(session, proving(session, lambda connection: protocol.send(connection, {**GOOD, **lie}))):
        answer = session.execute("true", timeout=1)
        assert answer.status_code in (200, 503), answer.text
        json.loads(answer.text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    neighbour.check()


@pytest.mark.parametrize(
    "frame",
    [
        b"\xff" * 8,
        b"\0\0\0\5\0\0\0\0[1,2]",
        b"\0\x0f\0\0\0\0\0\0" + b"[" * 983040,
        b"\0\0\0\2\0\0\0\5{}ab",
        b"",
    ],
)
def test_a_frame_that_is_none_ends_the_call_and_not_the_server(
    session: Session, neighbour: Neighbour, frame: bytes
) -> None:
    def send(connection: socket.socket) -> None:
        connection.sendall(frame)
        connection.close()

    with neighbour.undisturbed(), impostor(session, proving(session, send)):
        is_problem(session.execute("true", timeout=1), "guest_unavailable")


def test_a_guest_that_drips_its_answer_cannot_hold_a_call_for_ever(session: Session) -> None:
    """The deadline is for the whole answer, not for each byte of it."""

    def drip(connection: socket.socket) -> None:
        for byte in b"\0\0\1\0\0\0\0\0" + b" " * 30:
            connection.sendall(bytes([byte]))
            time.sleep(1)

    with impostor(session, proving(session, drip)):
        began = time.monotonic()
        is_problem(session.execute("true", timeout=0.1, wait=30), "guest_unavailable")
        assert time.monotonic() - began < 28


def test_forged_reports_fool_only_the_session_that_forges_them(
    session: Session, neighbour: Neighbour
) -> None:
    """The shell goes on: the real state comes back with the next commands."""
    forge = "(for n in $(seq 1 300); do printf '%s 7 /forged\\0' $n; done >/run/shells/1/reports) & sleep 1"
    session.execute(forge, timeout=3)
    neighbour.check()
    session.execute("sleep 1.5", timeout=3)
    session.is_usable()


def test_orders_that_the_shell_does_not_read_cannot_block_the_guest(session: Session) -> None:
    """A huge PWD, and a shell that stops before it reads on: the pipe is full, the timeout holds."""
    session.run(
        "PWD=$(head -c 1500000 /dev/zero | tr '\\0' x); N=0\n"
        "trap 'case $BASH_COMMAND in *printf*) N=$((N+1));; esac' DEBUG\n"
        "PROMPT_COMMAND='[ $N = 4 ] && kill -STOP $$'"
    )
    session.execute("echo a", cwd="/tmp", timeout=1, wait=40)
    session.is_usable()
