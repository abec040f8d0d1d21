"""Sessions that are put to sleep: paused or cold, and woken by the next call as if nothing had been."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from expect import ended, eventually, problem
from plain import Open, Session
from stack import Stack, docker


def ask(session: Session, verb: str, key: str | None = None, **body: Any) -> dict[str, Any]:
    answer = session.stack.call("POST", f"/v1/sessions/{session.id}/{verb}", key=key, json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def state(session: Session) -> str:
    return str(session.get().json()["state"])


def engine_says(session: Session) -> str:
    return docker("inspect", "-f", "{{.State.Status}}", session.container).strip()


# Paused.


def test_a_paused_session_is_frozen_and_the_next_call_finds_it_as_it_was(opened: Open) -> None:
    session = opened()
    session.output("cd /tmp; greeting=hello; (while :; do date +%s%N > /tmp/tick; done) & sleep 0.2")
    told = ask(session, "pause")
    assert (told["state"], told["state_reason"]) == ("paused", "asked")
    assert told["state_since"] >= told["created_at"]
    assert engine_says(session) == "paused"
    cpu = docker("stats", "--no-stream", "--format", "{{.CPUPerc}}", session.container)
    assert cpu.strip() == "0.00%"
    assert session.output('echo "$greeting from $PWD"') == "hello from /tmp\n"
    assert engine_says(session) == "running"
    told = session.get().json()
    assert (told["state"], told["state_reason"]) == ("running", "used")


def test_looking_at_a_paused_session_does_not_wake_it(opened: Open) -> None:
    session = opened()
    ask(session, "pause")
    listed = session.stack.call("GET", "/v1/sessions?limit=1000").json()["sessions"]
    assert [one["state"] for one in listed if one["session_id"] == session.id] == ["paused"]
    assert session.stack.call("POST", f"/v1/sessions/{session.id}/extend", json={}).status_code == 200
    assert state(session) == "paused"


def test_counting_what_runs_wakes_nobody(stack: Stack) -> None:
    """At its limit a tenant's sessions are asked what still runs. What is frozen does."""
    key = stack.new_key("sleepers")
    stack.ctl("tenant", "set", "sleepers", "--limit=executions=1")
    time.sleep(0.3)  # every worker knows it a tenth of a second later
    asleep, awake = (stack.call("POST", "/v1/sessions", key=key, json={}).json() for _ in range(2))
    at, execute = f"/v1/sessions/{asleep['session_id']}", f"/v1/sessions/{awake['session_id']}/execute"

    def pause() -> None:
        assert stack.call("POST", f"{at}/pause", key=key, json={}).json()["state"] == "paused"

    begun = {"command": "sleep 60", "background": True}
    stack.call("POST", f"{at}/execute", key=key, json=begun | {"execution_id": "frozen"})
    pause()
    for _ in range(2):
        refusal = stack.call("POST", execute, key=key, json={"command": "true"})
        problem(refusal, 429, "too_many_executions")
        assert stack.call("GET", at, key=key).json()["state"] == "paused"
        time.sleep(1.1)  # it is counted anew once a second
    stack.call("DELETE", f"{at}/executions/frozen", key=key)
    stack.call("POST", f"{at}/execute", key=key, json={"command": "true", "background": True})
    time.sleep(0.5)
    pause()
    assert stack.call("POST", execute, key=key, json={"command": "true"}).status_code == 200, "it had ended"
    assert stack.call("GET", at, key=key).json()["state"] == "paused"
    for one in (asleep, awake):
        stack.call("DELETE", f"/v1/sessions/{one['session_id']}", key=key)


def test_pausing_and_resuming_may_be_asked_for_twice(opened: Open) -> None:
    session = opened()
    assert ask(session, "resume")["state_reason"] == "opened"
    first = ask(session, "pause")
    assert ask(session, "pause")["state_since"] == first["state_since"]
    for _ in range(2):
        told = ask(session, "resume")
        assert (told["state"], told["state_reason"]) == ("running", "asked")


def test_every_way_to_a_guest_wakes_it(opened: Open) -> None:
    session, at = opened(), "/v1/sessions/{}/".format
    session.output("echo precious > kept", execution_id="earlier")
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "files", {}),
        ("GET", "files/content?path=kept", {}),
        ("PUT", "files/content?path=other", {"data": b"x"}),
        ("GET", "files/archive?path=.", {}),
        ("GET", "executions", {}),
        ("GET", "executions/earlier", {}),
        ("GET", "executions/earlier/events", {}),
        ("GET", "executions/earlier/log", {}),
        ("POST", "executions", {"json": {"command": "true"}}),
        ("POST", "snapshots", {"json": {}}),
    ]
    for method, path, options in calls:
        ask(session, "pause")
        answer = session.stack.call(method, at(session.id) + path, **options)
        assert answer.status_code < 300, (path, answer.text)
        assert state(session) == "running", path


def test_what_runs_waits_when_it_is_told_to_and_goes_on_afterwards(opened: Open) -> None:
    session = opened()
    started = session.execute(
        "echo begun; for i in $(seq 40); do sleep 0.05; done; echo done", background=True
    )
    execution = started.json()["execution_id"]
    path = f"/v1/sessions/{session.id}/executions/{execution}"
    ask(session, "pause")
    assert engine_says(session) == "paused"
    told = session.stack.call("GET", f"{path}?wait=30").json()
    assert told["result"]["stdout"] == "begun\ndone\n"


def test_no_call_ever_meets_a_frozen_guest(opened: Open) -> None:
    """Eight callers go on while the session is paused again and again: none waits long, none fails."""
    session, over = opened(), threading.Event()

    def call(number: int) -> int:
        done = 0
        while not over.is_set():
            assert session.output(f"echo {number}", timeout=20, shell=f"s{number}") == f"{number}\n"
            done += 1
        return done

    with ThreadPoolExecutor(8) as pool:
        callers = [pool.submit(call, number) for number in range(8)]
        try:
            for _ in range(10):
                answer = session.stack.call("POST", f"/v1/sessions/{session.id}/pause", json={})
                assert answer.status_code == 200, answer.text
        finally:
            over.set()
        assert all(caller.result(timeout=60) > 0 for caller in callers)


def test_a_paused_session_can_be_closed_and_leaves_nothing(opened: Open, stack: Stack) -> None:
    session = opened()
    container = session.container
    ask(session, "pause")
    assert session.close().status_code == 204
    assert container not in docker("ps", "-a", "--format", "{{.Names}}").split()
    ended(session.get(), "closed")


def test_a_paused_session_whose_container_is_killed_ends_with_the_cause(opened: Open) -> None:
    session = opened()
    ask(session, "pause")
    docker("kill", session.container)
    ended(session.execute("true"), "killed")


def test_a_paused_session_is_snapshot_restored_and_forked_like_any_other(opened: Open, stack: Stack) -> None:
    session = opened()
    session.output("cd /tmp; echo one > /workspace/file")
    for cold in (False, True):
        ask(session, "pause", cold=cold)
        taken = stack.call("POST", f"/v1/sessions/{session.id}/snapshots", json={}).json()
        session.output("echo two > /workspace/file")
        ask(session, "pause", cold=cold)
        ask(session, "restore", snapshot_id=taken["snapshot_id"])
        assert session.output("cat /workspace/file; pwd") == "one\n/tmp\n"
        ask(session, "pause", cold=cold)
        made = stack.call("POST", f"/v1/sessions/{session.id}/fork", json={}).json()["sessions"][0]
        copy = Session(stack, made["session_id"], made)
        assert copy.output("cat /workspace/file; pwd") == "one\n/tmp\n"
        copy.close()


# Cold.


def test_a_cold_session_has_no_container_and_comes_back_with_files_directory_and_variables(
    opened: Open,
) -> None:
    session = opened(env={"TOKEN": "secret"}, metadata={"name": "Ada"})
    session.output("mkdir -p a/b; echo precious > a/b/file; cd a/b; export greeting='hel lo'")
    container = session.container
    told = ask(session, "pause", cold=True)
    assert (told["state"], told["state_reason"], told["metadata"]) == ("cold", "asked", {"name": "Ada"})
    assert container not in docker("ps", "-a", "--format", "{{.Names}}").split()
    assert session.get().json()["disk_used"] is not None
    shown = session.output('pwd; cat file; echo "$greeting $TOKEN"')
    assert shown == "/workspace/a/b\nprecious\nhel lo secret\n"
    assert session.output(["printenv", "TOKEN"]) == "secret\n"
    told = session.get().json()
    assert (told["state"], told["state_reason"]) == ("running", "used")


def test_results_outlive_the_cold_and_their_logs_do_not(opened: Open, stack: Stack) -> None:
    session = opened()
    session.output("echo one; echo two >&2", execution_id="before")
    at = f"/v1/sessions/{session.id}/executions"
    before = stack.call("GET", f"{at}/before").json()
    ask(session, "pause", cold=True)
    after = stack.call("GET", f"{at}/before").json()
    assert after["result"] == before["result"]
    assert after["result"]["stderr"] == "two\n"
    assert [one["execution_id"] for one in stack.call("GET", at).json()["executions"]] == ["before"]
    log = stack.call("GET", f"{at}/before/log")
    assert (log.content, log.headers["X-Log-Bytes"], log.headers["X-Log-Missing"]) == (b"", "8", "0-8")


def test_a_key_of_before_the_cold_runs_nothing_twice(opened: Open) -> None:
    session, key = opened(), {"Idempotency-Key": "before"}
    first = session.execute("echo x >> once; date +%N", headers=key).json()
    for _ in range(2):
        ask(session, "pause", cold=True)
        assert session.execute("echo x >> once; date +%N", headers=key).json() == first
    problem(session.execute("true", headers=key), 409, "idempotency_conflict")
    assert session.output("cat once") == "x\n"


def test_what_is_too_large_to_outlive_the_cold_is_known_by_its_name(opened: Open, stack: Stack) -> None:
    session, key = opened(), {"Idempotency-Key": "large"}
    large = "echo x >> once; head -c 900000 /dev/zero"
    session.execute(large, headers=key)
    for _ in range(2):
        session.execute("head -c 900000 /dev/zero")
    session.output("true", execution_id="small")
    since = ask(session, "pause", cold=True)["state_since"]
    problem(session.execute(large, headers=key), 409, "result_forgotten")
    assert stack.call("GET", f"/v1/sessions/{session.id}/executions/small").status_code == 200
    answer = stack.call("GET", f"/v1/sessions/{session.id}/executions/unheard-of")
    assert problem(answer, 404, "execution_not_found")["cold_at"] == since
    assert session.output("cat once") == "x\n"


def test_a_paused_session_can_go_cold_and_both_can_be_resumed(opened: Open) -> None:
    session = opened()
    session.output("cd /tmp")
    ask(session, "pause")
    for wish in ({"cold": True}, {"cold": True}, {}):
        assert ask(session, "pause", **wish)["state"] == "cold"
    assert ask(session, "resume")["state"] == "running"
    assert session.output("pwd") == "/tmp\n"


def test_many_callers_of_a_cold_session_get_one_sandbox(opened: Open, stack: Stack) -> None:
    session = opened()
    ask(session, "pause", cold=True)
    before = len(stack.containers())
    with ThreadPoolExecutor(12) as pool:
        shown = list(pool.map(lambda number: session.output(f"echo {number}"), range(12)))
    assert shown == [f"{number}\n" for number in range(12)]
    assert len(stack.containers()) == before + 1


def test_one_whose_waking_was_given_up_without_a_word_is_woken_by_the_next_call(opened: Open) -> None:
    """The store had no room when its waking failed, not even for saying so."""
    session = opened()
    session.output("echo mine > file")
    ask(session, "pause", cold=True)
    store = session.stack.dir / "state" / "store" / "store.db"
    with contextlib.closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("UPDATE sessions SET phase = 'waking' WHERE id = ?", (session.id,))
    assert session.output("cat file") == "mine\n"
    assert state(session) == "running"


@pytest.mark.parametrize("hindrance", ["sleep 60", "export much=$(head -c 300000 /dev/zero | tr '\\0' x)"])
def test_variables_of_the_session_outlive_the_cold_whatever_its_shell_does(
    opened: Open, hindrance: str
) -> None:
    """A shell that is busy, or has more to tell than is kept, cannot tell what it was like."""
    session = opened(env={"TOKEN": "mine"})
    session.output("cd /tmp")
    session.execute(hindrance, background=True)
    eventually(lambda: session.execute("true", shell=None).status_code == 200)
    ask(session, "pause", cold=True)
    for shell in ("main", "other", None):
        assert session.output("echo $TOKEN", shell=shell) == "mine\n"


def test_a_cold_session_can_be_closed_and_leaves_nothing(opened: Open, stack: Stack) -> None:
    volumes = stack.volumes()
    session = opened()
    ask(session, "pause", cold=True)
    assert session.close().status_code == 204
    eventually(lambda: stack.volumes() == volumes)


def test_a_session_that_ends_while_it_is_paused_says_so(opened: Open) -> None:
    for _ in range(4):
        session = opened()
        with ThreadPoolExecutor(2) as pool:
            asked = pool.submit(session.stack.call, "POST", f"/v1/sessions/{session.id}/pause", json={})
            pool.submit(session.close).result(timeout=60)
            answer = asked.result(timeout=60)
        if answer.status_code != 200:  # it came first
            ended(answer, "closed")


def test_a_cold_session_keeps_its_named_workspace_to_itself(opened: Open, stack: Stack) -> None:
    session = opened(workspace="asleep")
    session.output("echo mine > file")
    ask(session, "pause", cold=True)
    problem(stack.call("POST", "/create_session", json={"workspace": "asleep"}), 409, "workspace_in_use")
    assert session.output("cat file") == "mine\n"


def test_a_user_finds_its_sleeping_session_again(opened: Open) -> None:
    first = opened(user_id="sleeper")
    first.output("echo mine > file")
    ask(first, "pause", cold=True)
    second = opened(user_id="sleeper")
    assert (second.id, second.told["state"]) == (first.id, "cold")
    assert second.output("cat file") == "mine\n"
