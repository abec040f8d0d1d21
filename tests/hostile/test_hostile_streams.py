"""Attacks on logs, streams and terminals: floods that nobody reads, logs that are reached for, crowds."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
import websocket
from invariants import GROWTH, Neighbour, Session, eventually, footprint, is_problem
from stack import Stack, docker

from server.guest.log import Log

LOG_LIMIT = 16 << 20
GUEST_GROWTH = 48 << 20  # what a flood may cost the guest, which shares its user's memory
SCREEN = {"cols": 80, "rows": 24}
ALTERNATING = "while True: os.write(1, b'a'); os.write(2, b'b')"


def start(session: Session, command: str | list[str], **fields: Any) -> str:
    body = {"command": command, "background": True, "timeout": 60, **fields}
    answer = session.tenant.call("POST", f"/v1/sessions/{session.id}/executions", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["execution_id"])


def ask(session: Session, method: str, execution: str, what: str = "", **options: Any) -> requests.Response:
    return session.tenant.call(method, f"/v1/sessions/{session.id}/executions/{execution}{what}", **options)


def told(session: Session, execution: str, wait: float = 0) -> dict[str, Any]:
    answer = ask(session, "GET", execution, f"?wait={wait}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def cancel(session: Session, execution: str) -> dict[str, Any]:
    """What a DELETE leaves: an execution that has ended."""
    assert ask(session, "DELETE", execution).status_code == 204
    left = told(session, execution)
    assert left["status"] == "ended"
    return left


def printed(session: Session, execution: str, size: int) -> None:
    """It has printed at least so many bytes."""

    def check() -> None:
        assert told(session, execution)["seq"] >= size

    eventually(check, 20)


def guest_of(session: Session) -> int:
    return int(docker("inspect", "-f", "{{.State.Pid}}", session.container))


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def spilled(pid: int) -> int:
    """Bytes on disk of the files that a guest holds open; a log has no name, so it is found nowhere else."""
    size = 0
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found = fd.stat()
            size += found.st_blocks * 512 if stat.S_ISREG(found.st_mode) else 0
    return size


@contextlib.contextmanager
def hanging(session: Session, *paths: str, room: int = 4096) -> Iterator[list[socket.socket]]:
    """Requests whose answers nobody reads."""
    peers = []
    try:
        for path in paths:
            peer = socket.socket()
            peers.append(peer)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
            peer.settimeout(30)
            peer.connect(("127.0.0.1", session.tenant.stack.port))
            head = f"GET /v1/sessions/{session.id}/executions/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            peer.sendall(f"{head}Authorization: Bearer {session.tenant.key}\r\n\r\n".encode())
        yield peers
    finally:
        for peer in peers:
            peer.close()


@pytest.mark.parametrize(
    ("command", "pty"),
    [
        (["yes"], None),
        (["yes"], SCREEN),
        (["dd", "if=/dev/zero", "bs=1M", "count=10240"], None),
        (["dd", "if=/dev/zero", "bs=1M", "count=10240"], SCREEN),
        (["python3", "-c", f"import os\n{ALTERNATING}"], None),
    ],
    ids=["yes", "yes on a terminal", "10 GB of zeros", "10 GB on a terminal", "alternating"],
)
def test_a30_a_flood_that_nobody_reads_fills_nothing(
    session: Session, neighbour: Neighbour, command: list[str], pty: dict[str, int] | None
) -> None:
    """Three readers that do not read: memory of the server and of the guest, and the disk, stay bounded."""
    guest, stack = guest_of(session), session.tenant.stack
    before, server = resident(guest), footprint(stack)
    with neighbour.undisturbed():
        execution = start(session, command, **({"pty": pty} if pty else {}))
        with hanging(session, *[f"{execution}/events"] * 3):
            printed(session, execution, 200_000)
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                assert resident(guest) - before < GUEST_GROWTH
                assert spilled(guest) <= LOG_LIMIT + (1 << 20)
                for pid, (memory, *_) in footprint(stack).items():
                    assert memory - server[pid][0] < GROWTH
                time.sleep(0.1)
        assert cancel(session, execution)["result"]["cancelled"]
    session.is_usable()


@contextlib.contextmanager
def reading(session: Session, number: int, execution: str) -> Iterator[None]:
    """Readers of its events that take whatever comes, as fast as it comes."""
    with hanging(session, *[f"{execution}/events"] * number, room=1 << 20) as peers:
        threads = [threading.Thread(target=_swallow, args=(peer,)) for peer in peers]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for peer in peers:
                peer.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(10)


def _swallow(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while peer.recv(1 << 20):
            pass


@pytest.mark.parametrize(
    ("command", "readers"),
    [
        (["python3", "-c", f"import os\n{ALTERNATING}"], 4),
        (["cat", "/dev/urandom"], 40),
        (["yes"], 40),
    ],
    ids=["alternating", "noise", "yes"],
)
def test_a34_eager_readers_of_a_flood_hold_up_nobody_else(
    session: Session, neighbour: Neighbour, command: list[str], readers: int
) -> None:
    """All that can be read is read, by many: the server still has time for its other callers."""
    execution = start(session, command)
    printed(session, execution, 500_000)
    with neighbour.undisturbed(), reading(session, readers, execution):
        time.sleep(2)
    cancel(session, execution)


def test_a30_logs_of_many_floods_are_let_go(session: Session) -> None:
    """Whatever the commands print one after another: four full logs at most are kept, and a result each."""
    guest = guest_of(session)
    before = resident(guest)
    for _ in range(8):
        session.beside("head -c 20000000 /dev/zero", timeout=20)
    assert spilled(guest) <= 4 * LOG_LIMIT + (1 << 20)
    assert resident(guest) - before < GUEST_GROWTH


def tcp_memory() -> int:
    """Bytes that the kernel holds for all connections of the machine."""
    found = re.search(r"TCP: .* mem (\d+)", Path("/proc/net/sockstat").read_text())
    assert found is not None
    return int(found[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a21_downloads_that_nobody_reads_do_not_fill_the_kernel(
    session: Session, neighbour: Neighbour
) -> None:
    """What the server has sent and nobody took lies in the host's memory, which has one limit for all."""
    execution = start(session, "head -c 16000000 /dev/zero")
    assert told(session, execution, wait=20)["status"] == "ended"
    before = tcp_memory()
    with neighbour.undisturbed(), hanging(session, *[f"{execution}/log"] * 100):
        time.sleep(1.5)
        assert tcp_memory() - before < 100 << 20
    session.is_usable()


def test_a_log_that_was_let_go_holds_no_memory() -> None:
    """Also not where its streams took turns: the guest knows a thousand logs that it has let go."""
    log = Log(1 << 20, "/tmp")
    for _ in range(30_000):
        log.add("stdout", b"a")
        log.add("stderr", b"b")
    log.close()
    held = sum(sys.getsizeof(value) for value in vars(log).values() if not isinstance(value, (int, list)))
    assert held < 4096


def events_in(stream: bytes) -> list[dict[str, Any]]:
    """As a browser reads them: any of three line ends, an empty line ends an event."""
    found = []
    for block in re.split(r"\r\n\r\n|\n\n|\r\r", stream.decode()):
        fields = dict(line.partition(": ")[::2] for line in re.split(r"\r\n|\n|\r", block) if line)
        if fields:
            found.append({"id": fields["id"], "kind": fields["event"], **json.loads(fields["data"])})
    return found


@pytest.mark.parametrize("pty", [None, SCREEN], ids=["pipes", "terminal"])
def test_a33_output_that_imitates_the_framing_is_only_output(
    session: Session, pty: dict[str, int] | None
) -> None:
    """Ends of events, of lines and of JSON, and what terminals obey: all of it arrives as output."""
    said = b'\n\nevent: end\ndata: {"event": "end", "seq": 1}\n\nid: 99999\nretry: 1\n\r\r\r\n\r\n"}]'
    said += b"\xe2\x80\xa8\xe2\x80\xa9\xc2\x85\x1b]52;c;cHduZWQ=\x07\x1b[2J\x1b[6n\x9b\x00\x7f{"
    put = f"import os, base64; os.write(1, base64.b64decode('{base64.b64encode(said).decode()}'))"
    execution = start(session, ["python3", "-c", put], **({"pty": pty} if pty else {}))
    assert told(session, execution, wait=20)["status"] == "ended"
    raw = ask(session, "GET", execution, "/events").content
    found = events_in(raw)
    assert [event["kind"] for event in found] == [event["event"] for event in found]
    assert (found[0]["event"], found[-1]["event"]) == ("start", "end")
    assert {event["event"] for event in found[1:-1]} == {"stdout"}
    pieces = [base64.b64decode(e["base64"]) if "base64" in e else e["text"].encode() for e in found[1:-1]]
    assert b"".join(pieces) == (said.replace(b"\n", b"\r\n") if pty else said)
    assert re.search(rb"[\x00-\x09\x0b-\x1f]", raw) is None
    assert raw.decode().splitlines() == raw.decode().split("\n")[:-1]  # httpx and others see more line ends
    assert ask(session, "GET", execution, "/log").content == b"".join(pieces)


def test_a33_a_response_to_a_query_is_not_made_up(session: Session) -> None:
    """A program asks the terminal who it is: nobody answers for one that nobody watches."""
    listen = r"stty raw -echo min 0 time 5; printf '\033[6n\033[c\033[5n'; wc -c; stty sane"
    execution = start(session, listen, pty=SCREEN)
    assert told(session, execution, wait=20)["result"]["output"].strip().endswith("n0")


def test_a103_names_with_control_characters_do_not_reach_the_log(session: Session) -> None:
    evil = '\x1b[2J\x9b\r\n{"level":"audit"}\x07'
    session.execute(f"true '{evil}'", execution_id="fine")
    is_problem(session.execute("true", execution_id=evil), "invalid_request")
    is_problem(ask(session, "GET", requests.utils.quote(evil, safe="")), "execution_not_found")
    terminal = f"/v1/sessions/{session.id}/terminal"
    is_problem(session.tenant.call("GET", terminal, params={"name": evil}), "invalid_request")
    is_problem(session.tenant.call("GET", terminal, params={"ticket": evil}), "invalid_request")
    headers = {"Last-Event-ID": "1\x1b[2J", "User-Agent": "\x1b[2J"}
    answer = ask(session, "GET", "fine", "/events", headers=headers)
    assert answer.status_code in (200, 400)
    for name in ("web", "keeper"):
        log = (session.tenant.stack.dir / f"{name}.log").read_bytes()
        assert re.search(rb"[\x00-\x09\x0b-\x1f\x7f-\x9f]", log) is None
        assert b'\n{"level":"audit"}' not in log


REACH = r"""
import errno, glob, json, os
def attempt(action):
    try: action()
    except OSError as exc: return errno.errorcode[exc.errno]
    return "allowed"
found = {}
for number in range(40):
    found[f"fd {number}"] = attempt(lambda: open(f"/proc/1/fd/{number}", "rb"))
    found[f"pidfd {number}"] = attempt(lambda: os.open(f"/proc/1/task/1/fd/{number}", os.O_WRONLY))
for place in ("/run/sandbox", "/run/shells", "/run"):
    found["write " + place] = attempt(lambda: open(place + "/x", "w"))
    found["nameless " + place] = attempt(lambda: os.open(place, os.O_TMPFILE | os.O_RDWR))
    found["remove " + place] = attempt(lambda: os.rmdir(place))
    found["rename " + place] = attempt(lambda: os.rename(place, place + "-moved"))
    found["loosen " + place] = attempt(lambda: os.chmod(place, 0o777))
found["list"] = attempt(lambda: os.listdir("/run/sandbox"))
found["kill"] = attempt(lambda: os.kill(1, 9))
own = sorted(os.readlink(path) for path in glob.glob("/proc/self/fd/*") if os.path.exists(path))
print("FOUND", json.dumps([found, own]))
"""


@pytest.mark.parametrize("how", [{}, {"pty": SCREEN}, {"stdin": "pipe"}], ids=["plain", "terminal", "pipe"])
def test_a42_what_holds_a_log_is_out_of_reach(session: Session, how: dict[str, Any]) -> None:
    """A program finds neither the log's file nor where it lies, and has inherited nothing of the guest's."""
    session.beside("head -c 1000000 /dev/zero")  # a log that has gone to a file
    execution = start(session, ["python3", "-c", REACH], **how)
    told(session, execution, wait=20)
    text = ask(session, "GET", execution, "/log").text
    found, own = json.loads(text.partition("FOUND ")[2].splitlines()[0])
    refusals = ("EPERM", "EACCES", "ENOENT", "EROFS", "EBUSY", "ENOTDIR", "EISDIR", "ENOTEMPTY")
    assert {what: how for what, how in found.items() if how not in refusals} == {}
    assert not [held for held in own if "ptmx" in held or "socket" in held or "deleted" in held]
    session.is_usable()


def test_a11_a_log_is_not_short_of_room_when_its_user_has_filled_everything(session: Session) -> None:
    session.run("dd if=/dev/zero of=/tmp/full bs=1M; dd if=/dev/zero of=/dev/shm/full bs=1M", timeout=20)
    execution = start(session, "head -c 3000000 /dev/zero | tr '\\0' x")
    told(session, execution, wait=20)
    assert ask(session, "GET", execution, "/log").content == b"x" * 3_000_000
    session.run("rm -f /tmp/full /dev/shm/full")


def test_a_program_that_leaves_its_terminal_costs_the_guest_nothing(session: Session) -> None:
    """It closes the tty and lives on; what is typed then goes nowhere, and nobody spins for it."""
    guest = guest_of(session)
    execution = start(session, "echo leaving; exec <&- >&- 2>&-; exec sleep 30", pty=SCREEN)
    printed(session, execution, 9)
    assert ask(session, "POST", execution, "/input", json={"data": "typed\n" * 100_000}).status_code in (
        204,
        409,
    )
    before = cpu_seconds(guest)
    time.sleep(1.5)
    assert cpu_seconds(guest) - before < 0.5
    assert told(session, execution)["status"] == "running"
    assert cancel(session, execution)["result"]["cancelled"]


def test_children_that_keep_a_terminal_keep_nobody_waiting(session: Session) -> None:
    """The command ends when its first process does, and who goes on writing to its tty is heard no more."""
    stay = "(trap '' HUP; while sleep 0.05; do echo still; done) & (setsid sleep 60 &) ; echo over; exit 3"
    execution = start(session, stay, pty=SCREEN)
    left = told(session, execution, wait=20)
    assert (left["status"], left["result"]["exit_code"]) == ("ended", 3)
    size = left["seq"]
    session.is_usable()
    assert told(session, execution)["seq"] == size


@pytest.mark.parametrize("pty", [None, SCREEN], ids=["pipes", "terminal"])
@pytest.mark.parametrize(
    "command",
    [
        ":(){ :|:& };:; wait; sleep 60",
        "sleep 0.1; kill -STOP $$",
        "trap '' TERM INT HUP QUIT TSTP; (setsid bash -c \"trap '' TERM HUP; sleep 1000\" &); sleep 1000",
        "sleep 1000 & kill -STOP $!; kill -STOP -$$; sleep 1000",
    ],
    ids=["a fork bomb", "stopped", "deaf", "a stopped group"],
)
def test_a01_whatever_runs_in_the_background_can_be_ended(
    session: Session, command: str, pty: dict[str, int] | None
) -> None:
    """DELETE answers when nothing of it is left."""
    execution = start(session, command, **({"pty": pty} if pty else {}))
    time.sleep(0.3)  # let it grow
    assert cancel(session, execution)["result"]["cancelled"]

    def check() -> None:
        assert int(session.beside("ps -e --no-headers | wc -l")["stdout"]) < 8

    eventually(check, 10)
    session.is_usable()


SPOIL = r"""
import fcntl, os, sys, termios, tty
name = os.ttyname(0)
os.chmod(name, 0)
try: os.chown(name, 0, 0)
except OSError: print("not given away", flush=True)
tty.setraw(0)
fcntl.ioctl(0, termios.TIOCEXCL)
fcntl.ioctl(0, termios.TIOCSWINSZ, b"\xff" * 8)
termios.tcflow(1, termios.TCOOFF)
os.write(1, b"x" * 1000000)
"""


def test_a_program_that_spoils_its_terminal_spoils_only_its_own(session: Session) -> None:
    """Modes, owner, size, exclusive use, stopped output: it can still be reached, and ended."""
    execution = start(session, ["python3", "-c", SPOIL], pty=SCREEN)
    printed(session, execution, len("not given away\r\n"))
    assert ask(session, "POST", execution, "/resize", json={"cols": 120, "rows": 40}).status_code == 204
    assert ask(session, "POST", execution, "/input", json={"data": "typed"}).status_code == 204
    other = start(session, "tty; stty size", pty=SCREEN)
    assert told(session, other, wait=20)["result"]["output"].endswith("24 80\r\n")
    assert cancel(session, execution)["result"]["cancelled"]
    session.is_usable()


INJECT = r"""
import fcntl, glob, os, sys, termios
for name in glob.glob("/dev/pts/[0-9]*"):
    try:
        fd = os.open(name, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        os.write(fd, b"\x1b[2J injected \x04\x03\r\n" * 50)
        for byte in b"exit 9\n\x04": fcntl.ioctl(fd, termios.TIOCSTI, bytes([byte]))
    except OSError as exc: print(name, exc)
    try: fcntl.ioctl(fd, termios.TIOCSCTTY, 1)
    except OSError as exc: print(name, exc)
print("done")
"""


def test_injection_into_another_terminal_does_not_confuse_the_guest(session: Session) -> None:
    """It is the same user's, so it may; but every execution still has its own log, end and code."""
    victim = start(session, "echo ready; sleep 1; exit 4", pty=SCREEN)
    printed(session, victim, 7)
    attacker = start(session, ["python3", "-c", INJECT], pty=SCREEN)
    assert "done" in told(session, attacker, wait=20)["result"]["output"]
    assert told(session, victim, wait=20)["result"]["exit_code"] in (4, 130)
    session.is_usable()


def test_a07_a_crowd_of_waiting_callers_leaves_the_session_usable(
    session: Session, neighbour: Neighbour
) -> None:
    """200 callers wait for one command: the excess is refused as such, and commands and logs go on."""
    finished = start(session, "seq 100000")
    told(session, finished, wait=20)
    execution = start(session, "sleep 50")
    with neighbour.undisturbed(), hanging(session, *[f"{execution}?wait=20"] * 200) as peers:
        statuses = answered_early(peers, 200 - 64)
        assert set(statuses) == {429}
        body = is_problem(ask(session, "GET", execution, "?wait=1"), "too_many_streams")
        assert body["scope"] == "session"
        session.is_usable()
        assert told(session, execution)["status"] == "running"
        log = ask(session, "GET", finished, "/log")
        whole = "".join(f"{number}\n" for number in range(1, 100_001)).encode()
        assert log.content == whole or is_problem(log, "too_many_streams")
        is_problem(ask(session, "GET", execution, "/events"), "too_many_streams")
    cancel(session, execution)


def answered_early(peers: list[socket.socket], number: int) -> list[int]:
    """The statuses of those that are answered at once."""
    deadline = time.monotonic() + 15
    found: list[int] = []
    for peer in peers:
        peer.settimeout(0.05)
    waiting = list(peers)
    while len(found) < number:
        assert time.monotonic() < deadline, f"{len(found)} of {number}"
        for peer in list(waiting):
            with contextlib.suppress(TimeoutError):
                found.append(int(peer.recv(12)[9:12]))
                waiting.remove(peer)
    return found


@pytest.mark.parametrize("what", ["/events", "?wait=120"])
def test_callers_who_hung_up_do_not_keep_their_places(session: Session, what: str) -> None:
    """A hundred came and went; a moment later somebody else can follow."""
    execution = start(session, "echo first; sleep 30")
    printed(session, execution, 6)
    for _ in range(2):
        with hanging(session, *[execution + what] * 50):
            time.sleep(0.5)  # they wait

    def check() -> None:
        assert told(session, execution, wait=0.1)["status"] == "running"

    eventually(check, 5)
    with contextlib.closing(ask(session, "GET", execution, "/events", stream=True)) as stream:
        lines = stream.iter_lines()
        assert b"first" in b"".join(next(lines) for _ in range(8))
    cancel(session, execution)


def test_a_terminal_in_a_crowd_is_refused_in_its_own_protocol(session: Session) -> None:
    """Its history is long, and all places are taken: a status or a frame, never HTTP inside a WebSocket."""
    execution = start(session, "sleep 50")
    with joined(session) as viewer:
        viewer.send_binary(b"seq 30000; sleep 0.2; echo do''ne\n")
        heard(viewer, lambda kind, data: kind == 2 and b"done\r\n" in data)
    with hanging(session, *[f"{execution}?wait=20"] * 80) as peers:
        answered_early(peers, 16)
        try:
            with joined(session) as viewer:
                heard(viewer, lambda kind, data: kind == 1 and b"too_many_streams" in data)
        except websocket.WebSocketBadStatusException as exc:
            assert exc.status_code == 429
    cancel(session, execution)


@contextlib.contextmanager
def joined(session: Session) -> Iterator[websocket.WebSocket]:
    stack: Stack = session.tenant.stack
    url = f"{stack.url}/v1/sessions/{session.id}/terminal".replace("http", "ws", 1)
    viewer = websocket.create_connection(url, header=[f"X-API-Key: {session.tenant.key}"], timeout=20)
    try:
        yield viewer
    finally:
        viewer.shutdown()


def heard(viewer: websocket.WebSocket, wanted: Callable[[int, bytes], bool]) -> None:
    for _ in range(10_000):
        kind, data = viewer.recv_data()
        assert kind in (1, 2), f"closed: {data!r}"
        if wanted(kind, data):
            return
    raise AssertionError("not heard")


@pytest.mark.parametrize(
    "frame",
    [
        b"\x89\x80\0\0\0\0",
        b"\x8a\x80\0\0\0\0",
        b'\x81\x8f\0\0\0\0{"type":"ping"}',
        b"\x81\x81\0\0\0\0{",
    ],
    ids=["pings", "pongs", "messages", "malformed messages"],
)
def test_a99_a_flood_of_tiny_frames_holds_up_nobody(
    session: Session, neighbour: Neighbour, frame: bytes
) -> None:
    """Three terminals that say nothing, as fast as they can: others are answered, nothing grows."""
    over = threading.Event()
    with neighbour.undisturbed():
        flooders = [threading.Thread(target=_babble, args=(session, frame, over)) for _ in range(3)]
        for flooder in flooders:
            flooder.start()
        time.sleep(1.5)
        over.set()
        for flooder in flooders:
            flooder.join(30)
    session.is_usable()


def _babble(session: Session, frame: bytes, over: threading.Event) -> None:
    with contextlib.suppress(OSError, websocket.WebSocketException), joined(session) as viewer:
        viewer.settimeout(0.5)
        answers = threading.Thread(target=_listen, args=(viewer.sock, over))
        answers.start()
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                viewer.sock.send(frame * 2000)
        answers.join(10)


def _listen(peer: socket.socket, over: threading.Event) -> None:
    while not over.is_set():
        try:
            if not peer.recv(1 << 20):
                return
        except TimeoutError:
            continue
        except OSError:
            return


def test_a_flood_of_input_is_bounded(session: Session, neighbour: Neighbour) -> None:
    """A program that never reads: a mebibyte waits for it, the rest is refused, nothing grows."""
    guest = guest_of(session)
    before = resident(guest)
    execution = start(session, "sleep 50", stdin="pipe")
    printed(session, execution, 0)
    body = {"data": "x" * 600_000}

    def flood(_: int) -> int:
        return ask(session, "POST", execution, "/input", json=body).status_code

    with neighbour.undisturbed(), ThreadPoolExecutor(6) as pool:
        statuses = list(pool.map(flood, range(36)))
    assert sorted(set(statuses)) == [204, 429]
    assert statuses.count(204) <= 2
    assert resident(guest) - before < GUEST_GROWTH
    cancel(session, execution)
    session.is_usable()


def test_thousands_of_short_executions_do_not_grow_the_guest(session: Session) -> None:
    """Beside one that runs all along. What the guest remembers of those that ended is bounded."""
    guest, local = guest_of(session), threading.local()
    url = f"{session.tenant.stack.url}/v1/sessions/{session.id}/executions"
    long = start(session, "sleep 100", timeout=120)

    def short(_: int) -> str:
        local.calls = getattr(local, "calls", None) or requests.Session()
        headers = {"Authorization": f"Bearer {session.tenant.key}"}
        with local.calls.post(
            url, json={"command": ["true"], "shell": None}, headers=headers, timeout=60
        ) as told:
            return str(told.json()["execution_id"])

    with ThreadPoolExecutor(6) as pool:
        first, *_ = pool.map(short, range(100))
        before = resident(guest)
        list(pool.map(short, range(1000)))
        assert resident(guest) - before < 12 << 20
        list(pool.map(lambda _: local.calls.close() if hasattr(local, "calls") else None, range(50)))
    is_problem(ask(session, "GET", first), "execution_not_found")
    assert cancel(session, long)["result"]["cancelled"]
