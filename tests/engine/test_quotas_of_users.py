"""Every quota of a tenant's user refuses that user, and nobody else; a tenant's disk space, too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from expect import eventually, problem
from stack import Stack, running

MIB = 1 << 20
SMALL = {"memory": 64 * MIB, "cpus": 0.1, "disk": 8 * MIB}
DAY_SECONDS = 86400


class User:
    """A user of a tenant, with a session of its own."""

    def __init__(self, server: Stack, key: str, name: str) -> None:
        self._server = server
        self._key = key
        self.name = name
        self.path = f"/v1/sessions/{self.open().json()['session_id']}"

    def open(self, user: str | None = None, **wish: Any) -> requests.Response:
        return self.call("POST", "/create_session", {**SMALL, "user_id": user or self.name, **wish})

    def call(self, method: str, path: str, json: Any = None, **options: Any) -> requests.Response:
        return self._server.call(method, path, key=self._key, json=json, **options)

    def execute(self, command: str) -> requests.Response:
        return self.call("POST", f"{self.path}/execute", {"command": command})

    def follow(self) -> requests.Response:
        """A stream that goes on until it is closed."""
        begun = self.call("POST", f"{self.path}/executions", {"command": "sleep 60", "background": True})
        events = f"{self.path}/executions/{begun.json()['execution_id']}/events"
        return self.call("GET", events, stream=True)

    def close(self) -> None:
        assert self.call("DELETE", self.path).status_code == 204


@pytest.fixture(scope="module")
def server() -> Iterator[Stack]:
    with running() as stack:
        yield stack


def asks_for_cpus(ada: User) -> requests.Response:
    return ada.open("ada's other self", cpus=0.3)


def asks_for_disk(ada: User) -> requests.Response:
    return ada.open("ada's other self", disk=17 * MIB)


def opens_streams(ada: User) -> requests.Response:
    with ada.follow() as first:
        assert first.status_code == 200
        return ada.follow()


def runs_for_long(ada: User) -> requests.Response:
    assert ada.execute("sleep 1.1").status_code == 200
    return ada.execute("true")


def sends_much(ada: User) -> requests.Response:
    content = f"{ada.path}/files/content?path=blob"
    assert ada.call("PUT", content, data=b"x" * MIB).status_code == 201
    return ada.call("GET", content)


@pytest.mark.parametrize(
    ("limit", "allowed", "act", "used", "longest"),
    [
        ("cpus", 0.2, asks_for_cpus, 0, 60),
        ("disk", 16 * MIB, asks_for_disk, 0, 60),
        ("streams", 1, opens_streams, 1, 60),
        ("exec_seconds", 1, runs_for_long, 1, DAY_SECONDS),
        ("bytes", MIB, sends_much, MIB, DAY_SECONDS),
    ],
    ids=["cpus", "disk", "streams", "exec_seconds", "bytes"],
)
def test_each_quota_of_a_user_refuses_that_user_alone(
    server: Stack,
    limit: str,
    allowed: float,
    act: Callable[[User], requests.Response],
    used: int,
    longest: int,
) -> None:
    server.ctl("tenant", "add", limit, f"--limit=user.{limit}={allowed}")
    key = server.new_key(limit)
    ada, bob = User(server, key, "ada"), User(server, key, "bob")
    answer = act(ada)
    told = problem(answer, 429, "too_many_streams" if limit == "streams" else "quota_exceeded")
    assert (told["limit"], told["scope"], told["allowed"]) == (limit, "user", allowed)
    assert used <= told["used"] <= used * 1.1 + 10
    assert str(allowed) in told["detail"], "nothing is rounded away"
    assert 0 < int(answer.headers["Retry-After"]) <= longest
    assert bob.execute("echo unaffected").json()["stdout"] == "unaffected\n"
    with bob.follow() as stream:
        assert stream.status_code == 200
    for user in (ada, bob):
        user.close()


def test_a_tenants_own_disk_limit_refuses_what_would_hold_more(server: Stack) -> None:
    """No time helps against that, so it is a conflict: something must be deleted."""
    ada = User(server, server.new_key("hoarder"), "ada")
    neighbour = User(server, server.new_key("thrifty"), "ada")
    content = f"{ada.path}/files/content?path=blob"
    assert ada.call("PUT", content, data=os.urandom(4 * MIB)).status_code == 201
    ada.execute("sync")
    server.ctl("tenant", "set", "hoarder", f"--limit=disk={3 * MIB}")
    told = problem(ada.open("another"), 409, "tenant_quota")
    assert (told["limit"], told["allowed"]) == ("disk", 3 * MIB)
    assert 4 * MIB <= told["used"] < 6 * MIB
    second = neighbour.open("another")
    assert second.status_code == 200
    neighbour.call("DELETE", f"/v1/sessions/{second.json()['session_id']}")
    ada.execute("rm blob; sync")
    eventually(lambda: ada.open("another").status_code == 200)
    for user in (ada, neighbour):
        for session in user.call("GET", "/v1/sessions").json()["sessions"]:
            user.call("DELETE", f"/v1/sessions/{session['session_id']}")
