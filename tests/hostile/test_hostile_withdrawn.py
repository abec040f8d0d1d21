"""What is open when its key ends (A94, A96b): streams, terminals and transfers end with it, in 5 seconds."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
import requests
import websocket
from invariants import Session, Tenant, is_problem
from stack import Stack, docker

WITHIN = 5.0
BUSY = 3.0  # what a machine that runs all these tests at once may add
PATIENCE = 60.0


@dataclass
class Open:
    """Things that a key has open, each read in a thread of its own, and when each of them ended."""

    session: Session
    key: str
    began: list[str] = field(default_factory=list)
    ended: dict[str, tuple[float, str]] = field(default_factory=dict)
    threads: list[threading.Thread] = field(default_factory=list)

    def all(self, execution: str) -> None:
        below = f"{self.session.tenant.stack.url}/v1/sessions/{self.session.id}"
        self._begin("events", lambda: self._get(f"{below}/executions/{execution}/events"))
        self._begin("watch", lambda: self._get(f"{below}/files/watch?path=."))
        self._begin("download", lambda: self._get(f"{below}/files/content?path=large", slowly=True))
        self._begin("upload", lambda: self._put(f"/v1/sessions/{self.session.id}/files/content?path=sent"))
        self._begin("terminal", lambda: self._terminal(f"{below}/terminal".replace("http", "ws", 1)))
        deadline = time.monotonic() + PATIENCE
        while len(self.began) < 5 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(self.began) == 5, (self.began, self.ended)

    def _begin(self, name: str, follow: Callable[[], Iterator[str]]) -> None:
        def run() -> None:
            said = [""]
            with contextlib.suppress(OSError, websocket.WebSocketException):
                for piece in follow():
                    said[0] = piece
                    if name not in self.began:
                        self.began.append(name)
            self.ended[name] = time.time(), said[0]

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}", "Accept": "application/x-ndjson"}

    def _get(self, url: str, slowly: bool = False) -> Iterator[str]:
        options: dict[str, Any] = {"headers": self._headers, "stream": True, "timeout": PATIENCE}
        with requests.Session() as caller, caller.get(url, **options) as answer:
            assert answer.status_code == 200, answer.text
            if not slowly:
                yield from (line.decode() for line in answer.iter_lines())
                return
            for _ in answer.iter_content(4096):
                yield ""
                time.sleep(0.05)

    def _put(self, path: str) -> Iterator[str]:
        """A body that never ends, until an answer comes in the middle of it."""
        head = (
            f"PUT {path} HTTP/1.1\r\nHost: localhost\r\n"
            f"X-API-Key: {self.key}\r\nContent-Length: 30000000\r\n\r\n"
        )
        with socket.create_connection(
            ("127.0.0.1", self.session.tenant.stack.port), timeout=0.05
        ) as connection:
            connection.sendall(head.encode())
            for _ in range(round(PATIENCE / 0.05)):
                connection.sendall(b"x" * 1024)
                yield "sent"
                with contextlib.suppress(TimeoutError):
                    yield connection.recv(4096).decode()
                    return

    def _terminal(self, url: str) -> Iterator[str]:
        viewer = websocket.create_connection(url, header=[f"X-API-Key: {self.key}"], timeout=PATIENCE)
        try:
            while True:
                opcode, data = viewer.recv_data()
                yield str(data)
                if opcode == websocket.ABNF.OPCODE_CLOSE:
                    return
        finally:
            viewer.shutdown()

    def ends(self, since: float) -> None:
        for thread in self.threads:
            thread.join(timeout=PATIENCE)
        late = {name: at - since for name, (at, _) in self.ended.items() if at - since > WITHIN + BUSY}
        assert (len(self.ended), late) == (5, {}), self.ended


@pytest.fixture
def owner(stack: Stack, request: pytest.FixtureRequest) -> Iterator[Tenant]:
    name = f"withdrawn-{request.node.name.rpartition('_')[2][:20]}"
    stack.ctl("tenant", "add", name)
    yield Tenant(stack, stack.new_key(name))
    if name in stack.ctl("tenant", "list"):
        stack.ctl("tenant", "delete", name)


def new_key(tenant: Tenant, *options: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(
        tenant.stack.ctl("key", "new", "--tenant", tenant_name(tenant), *options, "--json")
    )
    return made


def tenant_name(tenant: Tenant) -> str:
    listed = json.loads(tenant.stack.ctl("key", "list", "--json"))["keys"]
    return next(str(one["tenant"]) for one in listed if tenant.key.startswith(one["prefix"]))


def open_all(tenant: Tenant, key: str) -> Open:
    session = tenant.open()
    session.run("head -c 50000000 /dev/zero >large")
    started = tenant.call(
        "POST", f"/v1/sessions/{session.id}/executions", json={"command": "sleep 300", "background": True}
    ).json()
    opened = Open(session, key)
    opened.all(started["execution_id"])
    return opened


def names_of_containers() -> list[str]:
    return docker("ps", "-a", "--format", "{{.Names}}").split()


def refused(tenant: Tenant, key: str, code: str) -> None:
    is_problem(tenant.stack.call("GET", "/v1/sessions", key=key), code)


def test_a96b_all_that_a_key_has_open_ends_when_it_is_revoked(owner: Tenant) -> None:
    key = new_key(owner)["key"]
    opened = open_all(owner, key)
    owner.stack.ctl("key", "revoke", key)
    since = time.time()
    refused(owner, key, "unauthorized")
    opened.ends(since)
    for name in ("events", "watch", "upload"):
        assert "unauthorized" in opened.ended[name][1].lower(), opened.ended[name]
    opened.session.is_usable()  # it is the tenant's, not the key's
    owner.close_all()


def test_a96b_all_that_a_key_has_open_ends_when_it_expires(owner: Tenant) -> None:
    """Nobody does anything at that moment: the key was rotated a while before, with a grace."""
    made = new_key(owner)
    opened = open_all(owner, made["key"])
    owner.stack.ctl("key", "rotate", made["key"], "--grace", "4s")
    listed = json.loads(owner.stack.ctl("key", "list", "--json"))["keys"]
    expires_at = next(one["expires_at"] for one in listed if one["key_id"] == made["key_id"])
    until = datetime.fromisoformat(expires_at.replace("Z", "+00:00")).timestamp()
    opened.ends(until)
    refused(owner, made["key"], "unauthorized")
    assert min(at for at, _ in opened.ended.values()) >= until - 0.01
    owner.close_all()


def test_a96b_all_that_is_open_ends_when_the_tenant_is_suspended(owner: Tenant) -> None:
    """And the session is there again when it is resumed."""
    name = tenant_name(owner)
    opened = open_all(owner, owner.key)
    owner.stack.ctl("tenant", "suspend", name)
    since = time.time()
    refused(owner, owner.key, "tenant_suspended")
    opened.ends(since)
    owner.stack.ctl("tenant", "resume", name)
    opened.session.is_usable()
    owner.close_all()


def test_a96b_all_that_is_open_ends_when_the_tenant_is_deleted(owner: Tenant) -> None:
    """Its container too; and the key of a tenant that is gone is a wrong key like any other (A94)."""
    opened = open_all(owner, owner.key)
    container, name = opened.session.container, tenant_name(owner)
    owner.stack.ctl("tenant", "delete", name)
    opened.ends(time.time())
    refused(owner, owner.key, "unauthorized")
    deadline = time.monotonic() + PATIENCE
    while container in names_of_containers() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert container not in names_of_containers()


def test_a94_what_is_waited_for_is_not_told_to_a_key_that_is_revoked_meanwhile(owner: Tenant) -> None:
    """A command's result, and the end of one that runs in the background; both go on without it."""
    session, made = owner.open(), new_key(owner)
    below = f"/v1/sessions/{session.id}"
    started = owner.call(
        "POST", f"{below}/executions", json={"command": ["sleep", "30"], "background": True, "timeout": 40}
    ).json()
    asked = {"command": "sleep 20; echo secret", "timeout": 30}
    with ThreadPoolExecutor(2) as pool:
        waiting = [
            pool.submit(owner.stack.call, "POST", f"{below}/execute", key=made["key"], json=asked),
            pool.submit(
                owner.stack.call,
                "GET",
                f"{below}/executions/{started['execution_id']}?wait=25",
                key=made["key"],
            ),
        ]
        time.sleep(2)
        owner.stack.ctl("key", "revoke", made["key"])
        since = time.time()
        for one in waiting:
            is_problem(one.result(30), "unauthorized")
        assert time.time() - since < WITHIN + BUSY
    owner.close_all()


def test_a94_a_key_is_refused_at_once_when_it_is_rotated_and_a_grace_lets_it_be(owner: Tenant) -> None:
    first = new_key(owner)["key"]
    second = json.loads(owner.stack.ctl("key", "rotate", first, "--grace", "1h", "--json"))["key"]
    assert owner.stack.call("GET", "/v1/sessions", key=first).status_code == 200
    third = json.loads(owner.stack.ctl("key", "rotate", second, "--json"))["key"]
    for _ in range(8):  # whichever worker is asked
        refused(owner, second, "unauthorized")
        assert owner.stack.call("GET", "/v1/sessions", key=third).status_code == 200


def test_a94_a_url_for_a_file_dies_with_its_key_and_is_no_better_than_it(owner: Tenant) -> None:
    session = owner.open()
    session.run("echo x >file")
    urls = f"/v1/sessions/{session.id}/files/urls"
    wish = {"path": "file", "for": "download", "expires_in": 3600}
    limited = new_key(owner, "--scope", "execute")["key"]
    refusal = is_problem(owner.stack.call("POST", urls, key=limited, json=wish), "scope_missing")
    assert refusal["scope"] == "files"
    made = new_key(owner, "--scope", "files", "--expires-in", "1h")
    told = owner.stack.call("POST", urls, key=made["key"], json=wish).json()
    assert told["expires_at"] <= made["expires_at"]
    owner.stack.ctl("key", "revoke", made["key"])
    is_problem(requests.get(owner.stack.url + told["url"], timeout=30), "unauthorized")
    owner.close_all()
