"""Quotas hold however many ask at once, are told with every refusal, and are the truth after a kill -9."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from plain import open_in
from sandbox_client import HostFull, QuotaExceeded, SandboxClient, TooManySessions
from stack import Stack, running

MIB = 1 << 20
SMALL = {"memory": 64 * MIB, "cpus": 0.1, "disk": 8 * MIB}


@pytest.fixture(scope="module")
def server() -> Iterator[Stack]:
    """Two workers, and a quota of ten."""
    settings = {"SANDBOX_RATE_CREATE": "100000/second", "SANDBOX_CPUS_MAX": str(2 * (os.cpu_count() or 1))}
    with running(SANDBOX_SESSIONS_MAX="10", **settings) as stack:
        yield stack


def with_memory(size: int) -> dict[str, str]:
    """Settings that leave so much of this machine to sessions."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    total = next(int(line.split()[1]) for line in lines if line.startswith("MemTotal")) << 10
    return {"SANDBOX_MEMORY_OVERCOMMIT": "1", "SANDBOX_MEMORY_RESERVE": str(total - size)}


@pytest.fixture(scope="module")
def tiny() -> Iterator[Stack]:
    """A host with memory for one small session."""
    with running(SANDBOX_MEMORY="64m", **with_memory(100 * MIB)) as stack:
        yield stack


@pytest.fixture
def close_all(server: Stack) -> Iterator[None]:
    yield
    server.close_sessions()


def in_store(stack: Stack, sql: str, *values: Any) -> list[Any]:
    path = stack.dir / "state" / "store" / "store.db"
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as store:
        rows = store.execute(sql, values).fetchall()
        store.commit()
    return rows


def set_limits(stack: Stack, tenant: str, **limits: Any) -> None:
    stack.ctl("tenant", "set", tenant, *(f"--limit={name}={value}" for name, value in limits.items()))
    time.sleep(0.3)  # every worker knows it a tenth of a second later


def limits(stack: Stack, key: str | None = None, user: str | None = None) -> dict[str, Any]:
    told = stack.call("GET", "/v1/limits" + (f"?user_id={user}" if user else ""), key=key).json()
    found: dict[str, Any] = told["user"]["limits"] if user else told["limits"]
    return found


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.05)


def test_two_hundred_concurrent_creates_against_a_quota_of_ten_give_exactly_ten(
    server: Stack, close_all: None
) -> None:
    barrier = threading.Barrier(200)

    def create(_: int) -> requests.Response:
        barrier.wait(60)
        return server.call("POST", "/v1/sessions", json=SMALL, timeout=110)

    with ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(create, range(200)))
    assert Counter(answer.status_code for answer in answers) == {201: 10, 429: 190}
    refused = next(answer for answer in answers if answer.status_code == 429)
    body = refused.json()
    assert (body["code"], body["limit"], body["used"], body["allowed"]) == (
        "too_many_sessions",
        "sessions",
        10,
        10,
    )
    assert int(refused.headers["Retry-After"]) > 0
    assert limits(server)["sessions"] == {"used": 10, "allowed": 10}


def test_a_tenants_own_limits_replace_the_defaults(server: Stack) -> None:
    key = server.new_key("acme")
    set_limits(server, "acme", memory=128 * MIB, cpus=0.3)
    with SandboxClient(url=server.url, api_key=key, memory=64 * MIB, cpus=0.1) as first:
        first.execute("true")
        with pytest.raises(QuotaExceeded) as caught:
            SandboxClient(url=server.url, api_key=key, memory=96 * MIB, cpus=0.1, retries=0).execute("true")
        told = caught.value
        assert (told.limit, told.used, told.allowed) == ("memory", 64 * MIB, 128 * MIB)
        assert (told.scope, told.retryable, told.status) == ("tenant", True, 429)
        with pytest.raises(QuotaExceeded) as caught:
            SandboxClient(url=server.url, api_key=key, memory=64 * MIB, cpus=0.5, retries=0).execute("true")
        assert (caught.value.limit, caught.value.retryable) == ("cpus", False), "closing others cannot help"
        assert first.limits()["limits"]["cpus"] == {"used": 0.1, "allowed": 0.3}


def test_a_user_of_a_tenant_has_quotas_of_its_own(server: Stack) -> None:
    key = server.new_key("users")
    set_limits(server, "users", **{"user.memory": 64 * MIB, "user.executions": 1, "user.streams": 1})
    refused = server.call(
        "POST", "/create_session", key=key, json={**SMALL, "user_id": "u", "memory": 65 * MIB}
    )
    assert (refused.status_code, refused.json()["scope"], refused.json()["limit"]) == (429, "user", "memory")
    made = server.call("POST", "/create_session", key=key, json={**SMALL, "user_id": "u"}).json()[
        "session_id"
    ]
    path = f"/v1/sessions/{made}"
    begun = server.call(
        "POST", f"{path}/executions", key=key, json={"command": "sleep 60", "background": True}
    )
    assert begun.status_code == 201
    busy = server.call("POST", f"{path}/execute", key=key, json={"command": "true", "shell": None})
    assert (busy.status_code, busy.json()["scope"], busy.json()["allowed"]) == (429, "user", 1)
    assert limits(server, key, "u")["executions"] == {"used": 1, "allowed": 1}
    assert limits(server, key, "nobody")["executions"]["used"] == 0
    server.call("DELETE", path, key=key)


def test_seconds_of_a_day_are_counted_and_refused_until_tomorrow(server: Stack) -> None:
    key = server.new_key("busy")
    made = server.call("POST", "/create_session", key=key, json=SMALL).json()["session_id"]
    run = {"session_id": made, "command": "sleep 1.2"}
    assert server.call("POST", "/execute", key=key, json=run).status_code == 200
    begun = server.call("POST", f"/v1/sessions/{made}/executions", key=key, json={"command": "sleep 1"})
    assert begun.json()["status"] == "ended"
    used = limits(server, key)["exec_seconds"]["used"]
    assert 2.2 <= used <= 12, "both, the one that was waited for and the one that goes on by itself"
    set_limits(server, "busy", exec_seconds=2)
    refused = server.call("POST", "/execute", key=key, json=run)
    body = refused.json()
    assert (refused.status_code, body["code"], body["limit"], body["allowed"]) == (
        429,
        "quota_exceeded",
        "exec_seconds",
        2,
    )
    assert 0 < int(refused.headers["Retry-After"]) <= 86400
    assert server.call("DELETE", f"/v1/sessions/{made}", key=key).status_code == 204


def test_an_answer_that_is_shared_or_given_again_is_charged_once(server: Stack) -> None:
    key = server.new_key("repeating")
    made = server.call("POST", "/create_session", key=key, json=SMALL).json()["session_id"]

    def ask(_: int) -> str:
        run = {"session_id": made, "command": "sleep 1.5; date +%N"}
        answer = server.call("POST", "/execute", key=key, json=run, headers={"Idempotency-Key": "same"})
        return str(answer.json()["stdout"])

    with ThreadPoolExecutor(4) as pool:
        answers = set(pool.map(ask, range(4)))
    assert {ask(4), ask(5)} == answers
    assert 1.5 <= limits(server, key)["exec_seconds"]["used"] < 3
    server.call("DELETE", f"/v1/sessions/{made}", key=key)


def test_bytes_of_a_day_are_counted_in_both_directions(server: Stack) -> None:
    key = server.new_key("talker")
    made = server.call("POST", "/create_session", key=key, json={**SMALL, "user_id": "u"}).json()[
        "session_id"
    ]
    before = limits(server, key)["bytes"]["used"]
    path = f"/v1/sessions/{made}/files/content?path=blob"
    assert server.call("PUT", path, key=key, data=b"x" * MIB).status_code == 201
    assert len(server.call("GET", path, key=key).content) == MIB
    until(lambda: limits(server, key)["bytes"]["used"] - before >= 2 * MIB)
    assert limits(server, key)["bytes"]["used"] - before < 2 * MIB + 65536
    assert limits(server, key, "u")["bytes"]["used"] >= 2 * MIB
    set_limits(server, "talker", bytes=MIB)
    refused = server.call("GET", path, key=key)
    assert (refused.status_code, refused.json()["limit"]) == (429, "bytes")
    assert limits(server, key)["bytes"]["allowed"] == MIB, "where one stands can always be seen"
    assert server.call("DELETE", f"/v1/sessions/{made}", key=key).status_code == 204


def test_what_is_counted_is_the_truth_after_everything_was_killed(server: Stack, close_all: None) -> None:
    session = open_in(server, **SMALL)
    before = limits(server)["exec_seconds"]["used"]
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(session.execute, "sleep 30")
        until(lambda: limits(server)["executions"]["used"] == 1)
        until(lambda: limits(server)["exec_seconds"]["used"] - before > 1.0)
        server.kill("web")
        server.kill("keeper")
        with pytest.raises(requests.ConnectionError):
            lost.result(60)
    server.start()
    told = limits(server)
    assert told["sessions"]["used"] == 1
    assert told["executions"]["used"] == 0, "nobody waits for it any more"
    assert told["exec_seconds"]["used"] - before > 1.0, "what it ran is not forgotten"
    assert told["memory"]["used"] == 64 * MIB
    session.close()
    assert limits(server)["sessions"]["used"] == 0


def test_a_host_that_is_full_refuses_with_the_reason_and_running_sessions_go_on(tiny: Stack) -> None:
    first = open_in(tiny, **SMALL)
    with pytest.raises(HostFull) as caught:
        tiny.client(memory=64 * MIB, retries=0).execute("true")
    assert (caught.value.status, caught.value.extras["limit"]) == (503, "host_memory")
    assert (caught.value.extras["used"], caught.value.extras["allowed"]) == (64 * MIB, 100 * MIB)
    assert caught.value.retry_after
    assert first.output("echo here") == "here\n"
    larger = tiny.call("POST", "/create_session", json={"memory": 128 * MIB})
    assert (larger.status_code, larger.json()["field"]) == (400, "memory"), "that will never fit"
    first.close()
    open_in(tiny, **SMALL).close()


def test_more_cpus_than_the_host_has_are_refused_by_name(server: Stack) -> None:
    answer = server.call("POST", "/create_session", json={"cpus": (os.cpu_count() or 1) + 0.5})
    told = answer.json()
    assert (answer.status_code, told["code"], told["field"]) == (400, "invalid_request", "cpus")


def waiting_in_line(stack: Stack, key: str, wait: float = 100.0) -> requests.Response:
    return stack.call("POST", f"/v1/sessions?wait={wait}", key=key, json=SMALL, timeout=115)


def test_who_waits_gets_the_place_of_who_closes(server: Stack) -> None:
    key = server.new_key("patient")
    set_limits(server, "patient", sessions=1)
    with SandboxClient(url=server.url, api_key=key, memory=64 * MIB, cpus=0.1) as first:
        first.execute("true")
        began = time.monotonic()
        refused = server.call("POST", "/v1/sessions?wait=0.5", key=key, json=SMALL)
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_sessions")
        assert time.monotonic() - began >= 0.5
        with ThreadPoolExecutor(1) as pool:
            second = SandboxClient(url=server.url, api_key=key, memory=64 * MIB, cpus=0.1, wait=60)
            waiting = pool.submit(second.execute, "echo second")
            time.sleep(0.3)
            assert not waiting.done()
            first.close()
            assert waiting.result(90).output == "second\n"
            second.close()


def test_places_go_round_between_tenants_and_in_order_within_one(tiny: Stack) -> None:
    """The host has one place. Three of a stand in line before one of b comes: b's is the second served."""
    a, b = tiny.new_key("a"), tiny.new_key("b")
    served: list[str] = []

    def use(name: str, key: str) -> None:
        answer = waiting_in_line(tiny, key)
        assert answer.status_code == 201, answer.text
        served.append(name)
        tiny.call("DELETE", f"/v1/sessions/{answer.json()['session_id']}", key=key)

    held = open_in(tiny, **SMALL)
    with ThreadPoolExecutor(8) as pool:
        jobs = []
        for name, key in (("a1", a), ("a2", a), ("a3", a), ("b1", b), ("a4", a)):
            jobs.append(pool.submit(use, name, key))
            time.sleep(1.0)  # one after the other, as far as that can be
        passer_by = tiny.call("POST", "/v1/sessions", json={**SMALL, "memory": 64 * MIB})
        assert passer_by.status_code == 503, "nobody walks past those who wait"
        held.close()
        for job in jobs:
            job.result(110)
    assert served == ["a1", "b1", "a2", "a3", "a4"]


def test_who_hangs_up_leaves_the_line(tiny: Stack) -> None:
    key = tiny.new_key("hasty")
    held = open_in(tiny, **SMALL)
    with pytest.raises(requests.ReadTimeout):
        tiny.call("POST", "/v1/sessions?wait=100", key=key, json=SMALL, timeout=1)
    until(lambda: in_store(tiny, "SELECT count(*) FROM waiting") == [(0,)])
    held.close()
    open_in(tiny, **SMALL).close()
    assert limits(tiny, key)["sessions"]["used"] == 0


def test_who_hangs_up_leaves_the_line_whatever_it_has_said_before(tiny: Stack) -> None:
    key = tiny.new_key("talkative")
    held = open_in(tiny, **SMALL)
    body = json.dumps(SMALL)
    head = f"POST /v1/sessions?wait=100 HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    with socket.create_connection(("127.0.0.1", tiny.port), timeout=30) as caller:
        caller.sendall(head.encode())
        until(lambda: in_store(tiny, "SELECT count(*) FROM waiting") == [(1,)])
        caller.sendall(b"G")
        time.sleep(0.2)
    until(lambda: in_store(tiny, "SELECT count(*) FROM waiting") == [(0,)])
    held.close()
    assert limits(tiny, key)["sessions"]["used"] == 0


def test_who_is_withdrawn_while_waiting_gets_no_place(tiny: Stack) -> None:
    tiny.ctl("tenant", "add", "withdrawn")
    made = json.loads(tiny.ctl("key", "new", "--tenant", "withdrawn", "--json"))
    held = open_in(tiny, **SMALL)
    for withdraw, code in (
        (("key", "revoke", made["key"]), "unauthorized"),
        (("tenant", "suspend", "withdrawn"), "tenant_suspended"),
    ):
        key = tiny.new_key("withdrawn") if code == "tenant_suspended" else made["key"]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(tiny.call, "POST", "/v1/sessions?wait=100", key=key, json=SMALL)
            until(lambda: in_store(tiny, "SELECT count(*) FROM waiting") == [(1,)])
            tiny.ctl(*withdraw)
            assert waiting.result(20).json()["code"] in (code, "unauthorized")
    held.close()
    assert in_store(tiny, "SELECT count(*) FROM sessions WHERE tenant = 'withdrawn'") == [(0,)]


@pytest.mark.parametrize(("method", "below"), [("GET", "/executions"), ("DELETE", "")])
def test_what_runs_by_itself_counts_as_long_as_it_runs(server: Stack, method: str, below: str) -> None:
    """Listing the executions, or closing the session, tells how long that was: nobody has asked for each."""
    before = limits(server, server.key)
    session = open_in(server, **SMALL)
    path = f"/v1/sessions/{session.id}"
    for _ in range(3):
        server.call("POST", f"{path}/executions", json={"command": "true", "background": True})
    time.sleep(4)
    server.call(method, f"{path}{below}")
    after = limits(server, server.key)
    assert after["executions"]["used"] == before["executions"]["used"]
    assert after["exec_seconds"]["used"] - before["exec_seconds"]["used"] < 2
    session.close()


def test_warm_sandboxes_make_way_for_sessions() -> None:
    """Two warm ones and two sessions are more than the host has: the sessions get it."""
    pool = {"SANDBOX_MEMORY": "64m", "SANDBOX_POOL_MIN": "2", "SANDBOX_POOL_MAX": "2"}
    with running(**pool, **with_memory(200 * MIB)) as small:
        until(lambda: len(small.containers()) == 2)
        sessions = [open_in(small, memory=96 * MIB, cpus=0.1) for _ in range(2)]
        full = small.call("POST", "/create_session", json=SMALL)
        assert (full.status_code, full.json()["code"]) == (503, "host_full")
        assert len(small.containers()) == 2, "the warm ones are gone"
        assert [one.output("echo here") for one in sessions] == ["here\n"] * 2
        for one in sessions:
            one.close()


def test_too_many_sessions_is_still_what_the_sdk_says(server: Stack) -> None:
    key = server.new_key("few")
    set_limits(server, "few", sessions=1)
    with SandboxClient(url=server.url, api_key=key, memory=64 * MIB) as first:
        first.execute("true")
        with pytest.raises(TooManySessions) as caught:
            SandboxClient(url=server.url, api_key=key, retries=0).execute("true")
        assert isinstance(caught.value, QuotaExceeded) and caught.value.allowed == 1


def test_a_cold_session_takes_no_memory_and_is_woken_only_within_the_hosts(tiny: Stack) -> None:
    first = open_in(tiny)
    first.output("cd /tmp; echo precious > /workspace/file")
    assert tiny.call("POST", f"/v1/sessions/{first.id}/pause", json={"cold": True}).status_code == 200
    second = open_in(tiny)
    refused = first.execute("true")
    assert (refused.status_code, refused.json()["code"]) == (503, "host_full")
    assert first.get().json()["state"] == "cold"
    second.close()
    assert first.output("pwd; cat /workspace/file") == "/tmp\nprecious\n"
    first.close()


def test_a_cold_session_is_woken_only_within_its_tenants_memory() -> None:
    with running(SANDBOX_MEMORY="64m", SANDBOX_TENANT_MEMORY="100m") as stack:
        first = open_in(stack)
        assert stack.call("POST", f"/v1/sessions/{first.id}/pause", json={"cold": True}).status_code == 200
        second = open_in(stack)
        told = first.execute("true")
        assert (told.status_code, told.json()["code"], told.json()["limit"]) == (
            429,
            "quota_exceeded",
            "memory",
        )
        assert first.get().json()["state"] == "cold"
        second.close()
        assert first.output("echo awake") == "awake\n"
