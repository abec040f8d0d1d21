"""What must hold while a sandbox is attacked: for its neighbours, for the server, for its answers.

The numbers I1 to I7 are those of the attack catalogue.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
from stack import Stack, docker

NEIGHBOUR_SECONDS = 2.0
HEALTH_SECONDS = 2.0  # generous: the machine that runs the tests is busy with them too
GROWTH = 64 << 20
SETTLE_SECONDS = 10.0
_SECRETS = re.compile(r"e2b_[0-9a-f]{16}|docker\.sock|Traceback|/server/|\.py\"")


@dataclass
class Tenant:
    """Somebody with a key; every session it opens is closed at the end."""

    stack: Stack
    key: str
    opened: list[str] = field(default_factory=list)

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        # No connection is kept: each request may reach either worker, and none of ours counts as a leak.
        headers = {"Connection": "close", **options.pop("headers", {})}
        return self.stack.call(method, path, key=self.key, headers=headers, **options)

    def open(self, **wish: Any) -> Session:
        answer = self.call("POST", "/v1/sessions", json=wish)
        assert answer.status_code == 201, answer.text
        session = Session(self, answer.json()["session_id"])
        self.opened.append(session.id)
        return session

    def close(self, session: str) -> requests.Response:
        return self.call("DELETE", f"/v1/sessions/{session}")

    def close_all(self) -> None:
        while self.opened:
            self.close(self.opened.pop())


@dataclass
class Session:
    """A session as plain HTTP shows it: no retries, so that every answer is seen."""

    tenant: Tenant
    id: str

    def execute(self, command: str | list[str], **fields: Any) -> requests.Response:
        options = {"timeout": fields.pop("wait", 60)}
        body = {"command": command, **fields}
        return self.tenant.call("POST", f"/v1/sessions/{self.id}/execute", json=body, **options)

    def run(self, command: str | list[str], **fields: Any) -> dict[str, Any]:
        answer = self.execute(command, **fields)
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    def python(self, code: str, **fields: Any) -> dict[str, Any]:
        return self.run(code, language="python", **fields)

    def beside(self, command: str, **fields: Any) -> dict[str, Any]:
        """In a process of its own, whatever the shells are busy with."""
        return self.run(command, shell=None, **fields)

    def is_usable(self) -> None:
        """I9: a command in every kind of interpreter still runs."""
        assert self.run("echo usable", timeout=5)["stdout"] == "usable\n"
        assert self.beside("echo usable", timeout=5)["stdout"] == "usable\n"

    def get(self) -> requests.Response:
        return self.tenant.call("GET", f"/v1/sessions/{self.id}")

    def post(self, what: str) -> requests.Response:
        return self.tenant.call("POST", f"/v1/sessions/{self.id}/{what}")

    def close(self) -> requests.Response:
        return self.tenant.close(self.id)

    @property
    def container(self) -> str:
        return self.tenant.stack.container_of(self.id)

    @functools.cached_property
    def volume(self) -> Path:
        """Where its files are on the host, as an operator would find them."""
        state = self.tenant.stack.dir / "state"
        with contextlib.closing(sqlite3.connect(state / "store" / "store.db")) as store:
            row = store.execute("SELECT volume FROM sessions WHERE id = ?", (self.id,)).fetchone()
        return Path(state / "volumes" / row[0])

    @property
    def directory(self) -> Path:
        return self.tenant.stack.dir / "state" / "sandboxes" / self.container.removeprefix("sandbox-")


@dataclass
class Neighbour:
    """I1: a session of another tenant, whose commands must go on being answered."""

    session: Session

    def check(self) -> None:
        began = time.monotonic()
        assert self.session.run("echo ok", timeout=5)["stdout"] == "ok\n"
        assert time.monotonic() - began < NEIGHBOUR_SECONDS, "the neighbour was made to wait"
        began = time.monotonic()
        assert requests.get(self.session.tenant.stack.url + "/healthz", timeout=10).status_code == 200
        assert time.monotonic() - began < HEALTH_SECONDS, "the server was made to wait"

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Checked before, all along and after the block, and the server's footprint with it (I3)."""
        stack = self.session.tenant.stack
        self.check()
        before = footprint(stack)
        failures: list[BaseException] = []
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(over, failures))
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join(timeout=60)
        assert failures == []
        self.check()
        eventually(lambda: returned(stack, before), SETTLE_SECONDS)

    def _watch(self, over: threading.Event, failures: list[BaseException]) -> None:
        while not over.wait(0.3):
            try:
                self.check()
            except (AssertionError, requests.RequestException) as exc:
                failures.append(exc)


def footprint(stack: Stack) -> dict[int, tuple[int, int, int]]:
    """By pid: resident memory, open descriptors and threads of every process of the server."""
    return {pid: _footprint_of(pid) for pid in server_pids(stack)}


def server_pids(stack: Stack) -> list[int]:
    pids = []
    for process in stack.processes.values():
        pids.append(process.pid)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        pids += [int(pid) for pid in children.split()]
    return pids


def _footprint_of(pid: int) -> tuple[int, int, int]:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    memory = int(status["VmRSS"].split()[0]) << 10
    return memory, len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"])


def returned(stack: Stack, before: dict[int, tuple[int, int, int]]) -> None:
    """I3: no process of the server was lost, and none has grown for good."""
    now = footprint(stack)
    assert now.keys() == before.keys(), "a process of the server died"
    for pid, (memory, descriptors, threads) in before.items():
        assert now[pid][0] - memory < GROWTH, f"{(now[pid][0] - memory) >> 20} MiB more memory"
        # A worker may keep four connections to each of a few sandboxes.
        assert now[pid][1] - descriptors <= 16, f"{now[pid][1] - descriptors} more descriptors"
        assert now[pid][2] - threads <= 5, f"{now[pid][2] - threads} more threads"


def eventually(check: Callable[[], None], seconds: float) -> None:
    """`check` passes within `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def is_problem(answer: requests.Response, *codes: str) -> dict[str, Any]:
    """I4 and I7: a refusal is well formed, has a stable code, is no 500, and tells no secret."""
    assert answer.headers["Content-Type"] == "application/problem+json", answer.text[:500]
    body: dict[str, Any] = answer.json()
    assert body["status"] == answer.status_code
    assert body["code"] in codes if codes else answer.status_code not in (500, 502), body
    assert answer.headers["X-Request-Id"] == body["request_id"] != ""
    tells_no_secret(answer.text)
    return body


def tells_no_secret(text: str) -> None:
    assert _SECRETS.search(text) is None, text[:500]


def nothing_left(session: Session, container: str, directory: Path) -> None:
    """I5: no container, no directory, no process, no mount of a session that was closed."""

    def check() -> None:
        found = docker("ps", "-aq", "--filter", f"name={container}")
        assert found.split() == []
        assert not directory.exists()
        assert container.removeprefix("sandbox-") not in Path("/proc/self/mountinfo").read_text()
        assert not session.volume.exists()

    eventually(check, SETTLE_SECONDS)
