"""Two hundred streams at once: others are served as before, and nothing grows.

For two minutes by `make soak`; otherwise for as long as shows it.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sandbox_client import SandboxClient
from stack import Stack, docker, running

STREAMS = 200
SESSIONS = 20
SECONDS = float(os.environ.get("SOAK_SECONDS", "42"))
CALLS = 300
# A line a second by builtins alone: what is measured is the server, not the forks of `sleep`.
TALK = 'exec {clock}<> <(:); for ((i = 0; ; i++)); do echo "line $i"; read -r -t 1 -u "$clock"; done'


@dataclass
class Follower:
    """One stream, read as it comes, and what was wrong with it."""

    connection: socket.socket
    rest: bytes = b""
    lines: int = 0
    wrong: list[str] = field(default_factory=list)

    def read(self) -> bool:
        data = self.connection.recv(1 << 16)
        *whole, self.rest = (self.rest + data).split(b"\n")
        for line in whole:
            if line.startswith(b"{"):
                self._take(json.loads(line))
        return bool(data)

    def _take(self, event: dict[str, object]) -> None:
        if event["event"] not in ("start", "stdout", "keepalive"):
            self.wrong.append(str(event)[:200])
        for text in str(event.get("text", "")).splitlines():
            if text != f"line {self.lines}":
                self.wrong.append(f"{text!r} instead of line {self.lines}")
            self.lines += 1


class Followers:
    """All of them in one thread: the test must not be what slows the machine down."""

    def __init__(self) -> None:
        self.all: list[Follower] = []
        self._selector = selectors.DefaultSelector()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def add(self, stack: Stack, session: str, execution: str) -> None:
        connection = socket.create_connection(("127.0.0.1", stack.port), timeout=30)
        path = f"/v1/sessions/{session}/executions/{execution}/events"
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {stack.key}\r\n"
        connection.sendall(f"{head}Accept: application/x-ndjson\r\n\r\n".encode())
        follower = Follower(connection)
        self.all.append(follower)
        self._selector.register(connection, selectors.EVENT_READ, follower)

    def start(self) -> None:
        self._thread.start()

    def _read(self) -> None:
        while not self._stop.is_set():
            for key, _ in self._selector.select(timeout=1):
                if not key.data.read():
                    key.data.wrong.append("the stream ended")
                    self._selector.unregister(key.fileobj)

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        self._selector.close()
        for follower in self.all:
            follower.connection.close()


@pytest.fixture(scope="module")
def soaked() -> Iterator[Stack]:
    with running(SANDBOX_SESSIONS_MAX="50") as stack:
        yield stack


@pytest.fixture
def followers() -> Iterator[Followers]:
    made = Followers()
    yield made
    made.close()


def p95(sandbox: SandboxClient, seconds: float = 0.0) -> float:
    """Of calls spread over the time given, or one after the other."""
    times = []
    for _ in range(CALLS):
        began = time.monotonic()
        assert sandbox.execute("true").exit_code == 0
        times.append(time.monotonic() - began)
        time.sleep(max(0.0, seconds / CALLS - times[-1]))
    return statistics.quantiles(times, n=20)[18]


def resident(pid: int) -> int:
    fields = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
    return int(fields[fields.index("Pss:") + 1])


def memory(stack: Stack) -> dict[str, int]:
    """KiB of the web's processes together, and of the guests together."""
    web = stack.processes["web"].pid
    workers = Path(f"/proc/{web}/task/{web}/children").read_text().split()
    guests = docker("inspect", "-f", "{{.State.Pid}}", *stack.containers()).split()
    return {
        "web": sum(resident(int(pid)) for pid in [str(web), *workers]),
        "guests": sum(resident(int(pid)) for pid in guests),
    }


def open_streams(stack: Stack, followers: Followers) -> list[str]:
    """The sessions that they are in."""
    sessions = []
    for _ in range(SESSIONS):
        session = stack.call("POST", "/create_session", json={}).json()["session_id"]
        sessions.append(session)
        for _ in range(STREAMS // SESSIONS):
            asked = {"command": TALK, "background": True}
            answer = stack.call("POST", f"/v1/sessions/{session}/executions", json=asked)
            assert answer.status_code == 201, answer.text
            followers.add(stack, session, answer.json()["execution_id"])
    followers.start()
    return sessions


@pytest.mark.alone
@pytest.mark.timeout(400)
def test_two_hundred_streams_leave_others_within_three_times_their_idle_time(
    soaked: Stack, followers: Followers
) -> None:
    """Others on this machine only ever add time: what is judged is the usual window, not the unlucky one."""
    with soaked.client() as other:
        p95(other)  # the first calls of a server are not its usual ones
        idle = [p95(other, SECONDS / 8)]
        sessions = open_streams(soaked, followers)
        settled_after = time.monotonic() + SECONDS / 6
        busy = [p95(other, SECONDS / 6)]
        time.sleep(max(0.0, settled_after - time.monotonic()))
        before = memory(soaked)
        busy += [p95(other, SECONDS / 6) for _ in range(5)]
        after = memory(soaked)
        wrong = [follower.wrong for follower in followers.all if follower.wrong]
        for session in sessions:
            soaked.call("DELETE", f"/v1/sessions/{session}")
        idle.append(p95(other, SECONDS / 8))
    idle_ms, busy_ms = ([round(one * 1000, 1) for one in found] for found in (idle, busy))
    report = f"p95 in ms: idle {idle_ms}, busy {busy_ms}; memory in KiB: {before}, then {after}"
    print(report)
    assert wrong == []
    assert min(follower.lines for follower in followers.all) >= SECONDS / 2
    assert statistics.quantiles(busy)[0] <= 3 * max(idle), report
    # A leak grows with every line; what the allocator takes at once, and keeps, is a few megabytes.
    assert all(after[name] <= 1.1 * before[name] + 16384 for name in before), report
