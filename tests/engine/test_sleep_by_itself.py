"""Sessions that fall asleep because nobody uses them, on a server that does not wait long for that."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import websocket
from expect import ended, eventually, problem
from plain import Open, Session, opening
from stack import IMAGE_TAG, Stack, docker, running

IMAGE, PASSING = f"sandbox-server/default:{IMAGE_TAG}", f"sandbox-server/passing:{os.getpid()}"


@pytest.fixture(scope="module")
def passing() -> Iterator[str]:
    """Another name for the image, which can go and come back."""
    docker("tag", IMAGE, PASSING)
    yield PASSING
    docker("rmi", PASSING)


@pytest.fixture(scope="module")
def sleepy(passing: str) -> Iterator[Stack]:
    images = f"default={IMAGE},passing={passing}"
    with running(SANDBOX_PAUSE_AFTER="1", SANDBOX_COLD_AFTER="8", SANDBOX_IMAGES=images) as server:
        yield server


@pytest.fixture
def opened(sleepy: Stack) -> Iterator[Open]:
    with opening(sleepy) as open_one:
        yield open_one


def told(session: Session) -> tuple[str, str]:
    found = session.get().json()
    return found["state"], found["state_reason"]


def write(stack: Stack, sql: str, *values: object) -> None:
    """What a keeper that died would have left in the store."""
    with contextlib.closing(sqlite3.connect(stack.dir / "state" / "store" / "store.db")) as store:
        store.execute(sql, values)
        store.commit()


def test_an_idle_session_is_paused_then_cold_and_both_go_unnoticed(opened: Open) -> None:
    session = opened()
    session.output("cd /tmp; export greeting=hello; echo precious > /workspace/file")
    eventually(lambda: told(session) == ("paused", "idle"))
    shown = "hello from /tmp: precious\n"
    assert session.output('echo "$greeting from $PWD: $(cat /workspace/file)"') == shown
    eventually(lambda: told(session) == ("cold", "idle"), seconds=60)
    assert session.output('echo "$greeting from $PWD: $(cat /workspace/file)"') == shown
    assert told(session) == ("running", "used")
    eventually(lambda: {"session.paused", "session.cold"} <= recorded(session))


def recorded(session: Session) -> set[str]:
    """What the audit says was done to it."""
    found = session.stack.call("GET", f"/v1/audit?session={session.id}&limit=1000").json()["records"]
    return {record["action"] for record in found}


WAITS = "until [ -e go ]; do sleep 0.1; done; echo done"


def let_go(session: Session) -> None:
    answer = session.stack.call("PUT", f"/v1/sessions/{session.id}/files/content?path=go", data=b"")
    assert answer.status_code < 300, answer.text


def result(session: Session, execution: str) -> str:
    path = f"/v1/sessions/{session.id}/executions/{execution}?wait=60"
    return str(session.stack.call("GET", path).json()["result"]["stdout"])


def test_a_session_in_which_something_runs_is_not_frozen(opened: Open) -> None:
    busy, followed, idle = opened(), opened(), opened()
    execution = busy.execute(WAITS, background=True).json()["execution_id"]
    body, path = {"command": WAITS, "stream": True}, f"/v1/sessions/{followed.id}/execute"
    events = followed.stack.call("POST", path, json=body, stream=True)
    eventually(lambda: told(idle) == ("paused", "idle"))
    assert told(busy)[0] == told(followed)[0] == "running"
    for session in (busy, followed):
        let_go(session)
    assert result(busy, execution) == "done\n"
    assert b"event: end" in events.content
    eventually(lambda: told(busy) == told(followed) == ("paused", "idle"), seconds=60)


def test_a_session_that_was_paused_with_something_running_does_not_go_cold_by_itself(
    opened: Open, sleepy: Stack
) -> None:
    busy, idle = opened(), opened()
    execution = busy.execute(WAITS, background=True).json()["execution_id"]
    sleepy.call("POST", f"/v1/sessions/{busy.id}/pause", json={})
    eventually(lambda: told(idle) == ("cold", "idle"), seconds=60)
    assert told(busy) == ("paused", "asked")
    let_go(busy)
    assert result(busy, execution) == "done\n"


@pytest.mark.parametrize("cold", [False, True])
def test_a_sleeping_session_expires_with_its_lease_and_leaves_nothing(
    opened: Open, sleepy: Stack, cold: bool
) -> None:
    session = opened(timeout=3)
    sleepy.call("POST", f"/v1/sessions/{session.id}/pause", json={"cold": cold})
    eventually(lambda: session.get().status_code == 410)
    ended(session.execute("true"), "expired")
    eventually(lambda: sleepy.containers() == sleepy.directories() == sleepy.volumes() == [])


def test_a_cold_session_that_cannot_be_woken_stays_cold_and_says_so(opened: Open, sleepy: Stack) -> None:
    session = opened(image="passing")
    session.output("cd /tmp; echo precious > /workspace/file")
    sleepy.call("POST", f"/v1/sessions/{session.id}/pause", json={"cold": True})
    docker("rmi", PASSING)
    assert problem(session.execute("true"), 503, "engine_unavailable")["retryable"] is True
    assert told(session) == ("cold", "asked")
    docker("tag", IMAGE, PASSING)
    assert session.output("pwd; cat /workspace/file") == "/tmp\nprecious\n"


def test_who_is_connected_to_a_terminal_keeps_the_session_awake(opened: Open, sleepy: Stack) -> None:
    session, idle = opened(), opened()
    url = f"{sleepy.url.replace('http', 'ws')}/v1/sessions/{session.id}/terminal"
    with contextlib.closing(
        websocket.create_connection(url, header=[f"Authorization: Bearer {sleepy.key}"], timeout=30)
    ):
        eventually(lambda: told(idle) == ("cold", "idle"), seconds=60)
        assert told(session)[0] == "running"
    eventually(lambda: told(session) == ("paused", "idle"), seconds=60)


def test_sleeping_sessions_survive_a_restart_of_everything(opened: Open, sleepy: Stack) -> None:
    paused, cold = opened(), opened()
    for session in (paused, cold):
        session.output("cd /tmp; export greeting=hello")
        sleepy.call("POST", f"/v1/sessions/{session.id}/pause", json={"cold": session is cold})
    sleepy.stop()
    sleepy.start()
    assert docker("inspect", "-f", "{{.State.Status}}", paused.container).strip() == "paused"
    for session in (paused, cold):
        assert session.output("echo $greeting; pwd") == "hello\n/tmp\n"


# A keeper that dies in the middle leaves one of these; the next one puts it right.


@pytest.fixture
def session(opened: Open) -> Session:
    one = opened()
    one.output("cd /tmp; export greeting=hello")
    for verb in ("pause", "resume"):
        assert one.stack.call("POST", f"/v1/sessions/{one.id}/{verb}", json={}).status_code == 200
    return one


def test_a_keeper_that_died_before_it_froze_a_session(session: Session, sleepy: Stack) -> None:
    sleepy.kill("keeper")
    write(sleepy, "UPDATE sessions SET phase = 'paused', phase_reason = 'idle' WHERE id = ?", session.id)
    sleepy.start_keeper()
    frozen = ["inspect", "-f", "{{.State.Status}}", session.container]
    eventually(lambda: docker(*frozen).strip() == "paused")
    sleepy.wait_ready()
    assert session.output("echo $greeting; pwd") == "hello\n/tmp\n"


def test_a_keeper_that_died_before_it_said_that_a_session_is_awake(session: Session, sleepy: Stack) -> None:
    sleepy.call("POST", f"/v1/sessions/{session.id}/pause", json={})
    sleepy.kill("keeper")
    docker("unpause", session.container)
    sleepy.start_keeper()
    sleepy.wait_ready()
    assert session.output("echo $greeting; pwd") == "hello\n/tmp\n"


def test_a_keeper_that_died_before_it_removed_the_sandbox_of_a_cold_session(
    session: Session, sleepy: Stack
) -> None:
    container = session.container
    sleepy.kill("keeper")
    sql = "UPDATE sessions SET phase = 'cold', sandbox = NULL, address = NULL WHERE id = ?"
    write(sleepy, sql, session.id)
    sleepy.start_keeper()
    sleepy.wait_ready()
    assert session.output("echo $greeting; pwd") == "hello\n/tmp\n"
    eventually(lambda: container not in docker("ps", "-a", "--format", "{{.Names}}").split())
    eventually(lambda: len(sleepy.directories()) == 1)


@pytest.mark.parametrize("asked", ["pause", "cold", "thaw", "warm"])
@pytest.mark.parametrize("moment", [0.01, 0.06])
def test_a_keeper_that_is_killed_at_any_moment_loses_nothing(
    session: Session, sleepy: Stack, asked: str, moment: float
) -> None:
    session.output(f"echo {asked}{moment} > /workspace/file")
    at = f"/v1/sessions/{session.id}"
    if asked in ("thaw", "warm"):
        assert sleepy.call("POST", f"{at}/pause", json={"cold": asked == "warm"}).status_code == 200
    verb, body = ("resume", {}) if asked in ("thaw", "warm") else ("pause", {"cold": asked == "cold"})
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(sleepy.call, "POST", f"{at}/{verb}", json=body)
        time.sleep(moment)
        sleepy.kill("keeper")
        assert asking.result(timeout=60).status_code in (200, 503)
    sleepy.start_keeper()
    sleepy.wait_ready()
    assert session.output("cat /workspace/file; echo $greeting; pwd") == f"{asked}{moment}\nhello\n/tmp\n"
    eventually(lambda: len(sleepy.containers()) == len(sleepy.directories()) == 1)
