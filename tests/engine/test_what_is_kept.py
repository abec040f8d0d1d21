"""What is kept, for how long, how much of it and for whom is what the settings and the caller say."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import requests
from expect import eventually, problem
from plain import Open, open_in, opening
from stack import Stack, running

MIB = 1 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[Stack]:
    with running(SANDBOX_PERSIST_USERS="yes", SANDBOX_DOWNLOAD_LIMIT="1m") as stack:
        yield stack


@pytest.fixture
def opened(server: Stack) -> Iterator[Open]:
    with opening(server) as open_one:
        yield open_one


def restart_keeper(stack: Stack, **settings: str) -> None:
    """It sweeps at its start, as it does every minute."""
    stack.kill("keeper", signal.SIGTERM)
    stack.env.update(settings)
    stack.start_keeper()


def kept_snapshots(stack: Stack) -> set[str]:
    return {one["snapshot_id"] for one in stack.call("GET", "/v1/snapshots").json()["snapshots"]}


def records(stack: Stack, **query: Any) -> list[dict[str, Any]]:
    answer = stack.call("GET", "/v1/audit", params={"limit": 1000, **query})
    found: list[dict[str, Any]] = answer.json()["records"]
    return found


def test_where_users_persist_their_files_are_in_their_next_session(server: Stack, opened: Open) -> None:
    """Nobody asks for it; who has no user, says no, or is another user has nothing of it."""
    first = opened(user_id="ada")
    first.output("echo mine > notes")
    first.close()
    for wish in ({}, {"user_id": "bob"}, {"user_id": "ada", "persist": False}):
        other = opened(**wish)
        assert other.output("ls") == ""
        other.close()
    assert opened(user_id="ada").output("cat notes") == "mine\n"


def test_what_is_larger_than_a_download_may_be_is_refused_and_told_how_large_it_may_be(
    server: Stack, opened: Open
) -> None:
    session = opened()
    session.output(f"head -c {MIB + 1} /dev/zero > large; head -c {MIB} /dev/zero > right")
    path = f"/v1/sessions/{session.id}/files"
    told = problem(server.call("GET", f"{path}/content?path=large"), 413, "too_large")
    assert (told["limit"], told["retryable"]) == (MIB, False)
    assert len(server.call("GET", f"{path}/content?path=right").content) == MIB
    part = server.call("GET", f"{path}/content?path=large", headers={"Range": f"bytes=1-{MIB}"})
    assert (part.status_code, len(part.content)) == (206, MIB), "what is too large comes in parts"
    problem(server.call("GET", f"{path}/archive?path=."), 413, "too_large")


def test_a_snapshot_that_is_too_old_is_removed_and_a_younger_one_is_not(server: Stack) -> None:
    session = open_in(server)
    path = f"/v1/sessions/{session.id}/snapshots"
    old, young = (server.call("POST", path).json()["snapshot_id"] for _ in range(2))
    with closing(sqlite3.connect(server.dir / "state" / "store" / "store.db", timeout=30)) as store, store:
        store.execute("UPDATE snapshots SET created_at = created_at - 3601 WHERE id = ?", (old,))
    assert kept_snapshots(server) == {old, young}
    restart_keeper(server, SANDBOX_SNAPSHOT_AGE="3600")
    eventually(lambda: kept_snapshots(server) == {young})
    problem(server.call("GET", f"/v1/snapshots/{old}"), 404, "snapshot_not_found")
    volumes = server.dir / "state" / "volumes"
    eventually(lambda: not (volumes / old).exists())
    assert (volumes / young).exists()
    server.wait_ready()
    assert server.call("DELETE", f"/v1/snapshots/{young}").status_code == 204
    session.close()


@pytest.mark.parametrize(
    "settings",
    [{"SANDBOX_AUDIT_AGE": "1"}, {"SANDBOX_AUDIT_AGE": "7776000", "SANDBOX_AUDIT_SIZE": "8k"}],
    ids=["age", "size"],
)
def test_the_keeper_removes_records_of_the_audit_and_what_is_left_is_whole(
    server: Stack, settings: dict[str, str]
) -> None:
    for _ in range(40):
        problem(
            server.call("POST", "/execute", json={"session_id": "0" * 32, "command": "id"}),
            404,
            "session_not_found",
        )
    before = records(server)
    time.sleep(1)
    restart_keeper(server, **settings)
    eventually(lambda: records(server)[0]["seq"] > before[0]["seq"])
    server.wait_ready()
    told = records(server, action="audit.pruned")[-1]
    assert told["details"]["records"] > 0
    left = records(server)
    assert len(left) < len(before) and left[-1]["seq"] > before[-1]["seq"], "the newest are there"
    found = {one["chain"]: one for one in json.loads(server.ctl("audit", "verify", "--json"))["chains"]}
    assert found["default"]["pruned"] >= told["details"]["records"]
    assert "NOT WHOLE" not in server.ctl("audit", "verify")


def test_the_plain_endpoint_waits_for_a_place_as_the_other_does(server: Stack) -> None:
    server.ctl("tenant", "add", "patient", "--limit=sessions=1")
    key = server.new_key("patient")

    def create(wait: float) -> requests.Response:
        return server.call("POST", f"/create_session?wait={wait}", key=key, json={})

    first = create(0).json()["session_id"]
    began = time.monotonic()
    problem(create(0.5), 429, "too_many_sessions")
    assert time.monotonic() - began >= 0.5
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(create, 50)
        time.sleep(0.3)
        assert not waiting.done()
        server.call("POST", "/cleanup", key=key, json={"session_id": first})
        second = waiting.result(60)
    assert (second.status_code, second.json()["status"]) == (200, "created")
    server.call("POST", "/cleanup", key=key, json={"session_id": second.json()["session_id"]})
