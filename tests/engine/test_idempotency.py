"""The same Idempotency-Key gives the same answer, and nothing happens twice."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from expect import ended, problem
from plain import Open, Session
from stack import Stack, running


def new_key() -> dict[str, str]:
    return {"Idempotency-Key": secrets.token_hex(8)}


def create(stack: Stack, headers: dict[str, str], **wish: Any) -> requests.Response:
    return stack.call("POST", "/create_session", json=wish, headers=headers)


def test_a_command_with_the_same_key_runs_once(session: Session) -> None:
    key = new_key()
    first = session.execute("echo x >> once; date +%N", headers=key)
    second = session.execute("echo x >> once; date +%N", headers=key)
    assert first.json() == second.json()
    assert session.output("cat once; rm once") == "x\n"


def test_commands_with_the_same_key_at_once_run_once(session: Session) -> None:
    key, answers = new_key(), []
    threads = [
        threading.Thread(
            target=lambda: answers.append(
                session.execute("sleep 0.3; echo x >> same; date +%N", headers=key).json()
            )
        )
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(answers) == 5
    assert all(answer == answers[0] for answer in answers)
    assert session.output("cat same; rm same") == "x\n"


def test_the_same_key_with_another_body_is_a_conflict(session: Session) -> None:
    key = new_key()
    session.execute("true", headers=key)
    problem(session.execute("touch never", headers=key), 409, "idempotency_conflict")
    assert session.output("ls never 2>/dev/null || echo none") == "none\n"


def test_the_same_key_in_another_session_is_another_command(session: Session, opened: Open) -> None:
    key, other = new_key(), opened()
    first, second = (one.execute("echo $$ $RANDOM; hostname", headers=key).json() for one in (session, other))
    assert first["execution_id"] != second["execution_id"]


def test_without_a_key_every_command_runs(session: Session) -> None:
    ids = {session.execute("true").json()["execution_id"] for _ in range(3)}
    assert len(ids) == 3


def test_a_create_with_the_same_key_gives_the_same_session(stack: Stack) -> None:
    key = new_key()
    first, second = create(stack, key).json(), create(stack, key).json()
    assert first["session_id"] == second["session_id"]
    assert (first["status"], second["status"]) == ("created", "created")
    stack.call("DELETE", f"/v1/sessions/{first['session_id']}")


def test_creates_with_the_same_key_at_once_give_one_session(stack: Stack) -> None:
    key, answers, before = new_key(), [], len(stack.containers())
    threads = [threading.Thread(target=lambda: answers.append(create(stack, key).json())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({answer["session_id"] for answer in answers}) == 1
    assert len(stack.containers()) == before + 1
    stack.call("DELETE", f"/v1/sessions/{answers[0]['session_id']}")


def test_a_create_with_the_same_key_and_another_wish_is_a_conflict(stack: Stack) -> None:
    key = new_key()
    session_id = create(stack, key, timeout=100).json()["session_id"]
    problem(create(stack, key, timeout=200), 409, "idempotency_conflict")
    stack.call("DELETE", f"/v1/sessions/{session_id}")


def test_a_create_repeated_after_its_session_ended_says_so(stack: Stack) -> None:
    key = new_key()
    session_id = create(stack, key).json()["session_id"]
    stack.call("DELETE", f"/v1/sessions/{session_id}")
    ended(create(stack, key), "closed")


def test_the_same_key_of_another_tenant_is_its_own(stack: Stack) -> None:
    key, stranger = new_key(), stack.new_key("stranger")
    mine = create(stack, key).json()["session_id"]
    theirs = stack.call("POST", "/create_session", headers=key, key=stranger, json={}).json()["session_id"]
    assert mine != theirs
    stack.call("DELETE", f"/v1/sessions/{mine}")
    stack.call("DELETE", f"/v1/sessions/{theirs}", key=stranger)


def test_a_refused_command_may_be_repeated_under_its_key(session: Session) -> None:
    key = new_key()
    fields: dict[str, Any] = {"cwd": "/workspace/later", "headers": key}
    assert session.execute("pwd", **fields).status_code == 400
    session.output("mkdir later")
    assert session.execute("pwd", **fields).json()["output"] == "/workspace/later\n"
    session.output("rmdir later")


def test_a_create_that_was_given_the_users_session_gives_it_again(stack: Stack) -> None:
    first = create(stack, {}, user_id="standing").json()["session_id"]
    key = new_key()
    for _ in range(2):
        again = create(stack, key, user_id="standing").json()
        assert (again["session_id"], again["status"]) == (first, "existing")
    problem(create(stack, key, user_id="another"), 409, "idempotency_conflict")
    stack.call("DELETE", f"/v1/sessions/{first}")
    ended(create(stack, key, user_id="standing"), "closed")
    fresh = create(stack, new_key(), user_id="standing").json()
    assert fresh["session_id"] != first
    stack.call("DELETE", f"/v1/sessions/{fresh['session_id']}")


@pytest.fixture(scope="module")
def small() -> Iterator[Stack]:
    """A server with room for one session, whose processes may be killed."""
    with running(SANDBOX_SESSIONS_MAX="1") as server:
        yield server


def test_a_create_that_was_refused_for_a_limit_succeeds_later_under_its_key(small: Stack) -> None:
    first = create(small, new_key()).json()["session_id"]
    key = new_key()
    assert create(small, key).status_code == 429
    small.call("DELETE", f"/v1/sessions/{first}")
    answer = create(small, key)
    assert answer.status_code == 200, answer.text
    assert create(small, key).json()["session_id"] == answer.json()["session_id"]
    small.close_sessions()


def test_a_create_that_failed_for_want_of_a_keeper_succeeds_later_under_its_key(small: Stack) -> None:
    small.kill("keeper")
    key = new_key()
    problem(create(small, key), 503, "keeper_unavailable")
    small.start_keeper()
    small.wait_ready()
    assert create(small, key).json()["status"] == "created"
    small.close_sessions()


@pytest.mark.parametrize("killed", ["web", "keeper"])
def test_a_create_cut_off_by_a_kill_gives_one_session_under_its_key(small: Stack, killed: str) -> None:
    """Whatever had become of the first: the second gets a session, and there is one."""
    key = new_key()
    answers: list[requests.Response] = []

    def ask() -> None:
        with contextlib.suppress(requests.RequestException):
            answers.append(create(small, key))

    first = threading.Thread(target=ask)
    first.start()
    time.sleep(0.15)
    small.kill(killed)
    first.join(90)
    small.start_web() if killed == "web" else small.start_keeper()
    small.wait_ready()
    deadline = time.monotonic() + 90
    while (answer := create(small, key)).status_code != 200:
        assert answer.json()["retryable"], answer.text
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.5)
    assert create(small, key).json()["session_id"] == answer.json()["session_id"]
    assert len(small.call("GET", "/v1/sessions").json()["sessions"]) == 1
    small.close_sessions()
