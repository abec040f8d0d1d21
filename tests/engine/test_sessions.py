"""Sessions: asked for, found, listed, extended and closed; one for each user; nobody else's."""

from __future__ import annotations

import json
import re
import threading
import time
from typing import Any

import pytest
import requests
from expect import ended, problem, refused
from plain import Open, Session
from stack import Stack, docker

NOWHERE = "0" * 32


def together(number: int, work: Any) -> list[Any]:
    barrier, results = threading.Barrier(number), []

    def one() -> None:
        barrier.wait(10)
        results.append(work())

    threads = [threading.Thread(target=one) for _ in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_a_session_is_created_without_any_wish(opened: Open) -> None:
    told = opened().told
    assert re.fullmatch("[0-9a-f]{32}", told["session_id"])
    assert (told["status"], told["state"], told["user_id"], told["image"]) == (
        "created",
        "running",
        None,
        "default",
    )
    assert (told["memory"], told["cpus"], told["timeout"], told["metadata"]) == (512 << 20, 1, 3600, {})
    assert all(
        re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:.]+Z", told[f"{name}_at"]) for name in ("created", "expires")
    )


def test_the_three_plain_endpoints_work_as_people_know_them(stack: Stack) -> None:
    session_id = stack.call("POST", "/create_session").json()["session_id"]
    answer = stack.call("POST", "/execute", json={"session_id": session_id, "command": "echo hello"}).json()
    assert (answer["exit_code"], answer["output"]) == (0, "hello\n")
    closed = stack.call("POST", "/cleanup", json={"session_id": session_id})
    assert (closed.status_code, closed.json()) == (200, {"session_id": session_id, "status": "closed"})


def test_a_key_may_come_in_either_header(stack: Stack) -> None:
    assert (
        requests.get(f"{stack.url}/v1/sessions", headers={"X-API-Key": stack.key}, timeout=10).status_code
        == 200
    )


def test_the_resource_answers_201_for_a_new_session_and_200_for_an_existing_one(stack: Stack) -> None:
    first = stack.call("POST", "/v1/sessions", json={"user_id": "resource"})
    second = stack.call("POST", "/v1/sessions", json={"user_id": "resource"})
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["session_id"] == second.json()["session_id"]
    assert (first.json()["status"], second.json()["status"]) == ("created", "existing")
    assert stack.call("DELETE", f"/v1/sessions/{first.json()['session_id']}").status_code == 204


def test_a_user_gets_the_same_session_again_with_its_state(opened: Open) -> None:
    first = opened(user_id="ann")
    first.output("x=kept")
    second = opened(user_id="ann")
    assert (second.id, second.told["status"]) == (first.id, "existing")
    assert second.output("echo $x") == "kept\n"
    assert opened(user_id="bob").id != first.id


def test_two_creates_at_once_for_one_user_give_one_session(stack: Stack) -> None:
    answers = together(6, lambda: stack.call("POST", "/create_session", json={"user_id": "twin"}))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["session_id"] for answer in answers}) == 1
    assert sorted(answer.json()["status"] for answer in answers) == ["created", *["existing"] * 5]
    session = Session(stack, answers[0].json()["session_id"], {})
    assert session.output("echo ready") == "ready\n"
    session.close()


def test_a_create_never_fails_because_somebody_closed_the_session_meanwhile(stack: Stack) -> None:
    """Everybody opens the same user's session, and half of them close what they got."""
    turn = iter(range(16))

    def open_and_perhaps_close() -> requests.Response:
        answer = stack.call("POST", "/create_session", json={"user_id": "hectic"})
        if next(turn) % 2:
            stack.call("POST", "/cleanup", json={"session_id": answer.json().get("session_id", "")})
        return answer

    answers = together(16, open_and_perhaps_close)
    assert {answer.status_code for answer in answers} == {200}, [answer.text for answer in answers]
    stack.close_sessions()


def test_a_user_gets_a_new_session_after_the_old_one_was_closed(opened: Open) -> None:
    first = opened(user_id="again")
    first.close()
    second = opened(user_id="again")
    assert (second.told["status"], second.id != first.id) == ("created", True)


def test_memory_and_cpus_are_enforced_as_asked(opened: Open) -> None:
    session = opened(memory=64 << 20, cpus=0.5)
    assert (session.told["memory"], session.told["cpus"]) == (64 << 20, 0.5)
    limits = json.loads(docker("inspect", "-f", "{{json .HostConfig}}", session.container))
    assert (limits["Memory"], limits["NanoCpus"]) == (64 << 20, 500_000_000)


@pytest.mark.parametrize(
    "wish",
    [
        {"memory": (4 << 30) + 1},
        {"cpus": 4.5},
        {"timeout": 86401},
        {"image": "debian"},
        {"image": "sandbox-server/default:latest"},
    ],
    ids=str,
)
def test_more_than_the_maximum_or_an_image_not_on_the_list_is_refused(
    stack: Stack, wish: dict[str, Any]
) -> None:
    before = len(stack.containers())
    refused(stack.call("POST", "/create_session", json=wish), next(iter(wish)))
    assert len(stack.containers()) == before


def test_env_is_there_for_every_command(opened: Open) -> None:
    session = opened(env={"GREETING": "it's $HOME\n"})
    for fields in ({}, {"shell": "other"}, {"shell": None}):
        assert session.output('printf %s "$GREETING"', **fields) == "it's $HOME\n"
    assert session.output(["printenv", "GREETING"]) == "it's $HOME\n\n"
    value = session.execute("import os; os.environ['GREETING']", language="python").json()["value"]
    assert value == repr("it's $HOME\n")


def test_the_list_is_filtered_by_labels_and_user(stack: Stack, opened: Open) -> None:
    red = opened(user_id="carol", metadata={"colour": "red", "team": "x y"})
    blue = opened(metadata={"colour": "blue", "team": "x y"})

    def found(query: str) -> set[str]:
        return {one["session_id"] for one in stack.call("GET", f"/v1/sessions?{query}").json()["sessions"]}

    assert found("metadata.colour=red") == found("user_id=carol") == {red.id}
    assert found("metadata.team=x%20y") == {red.id, blue.id}
    assert found("metadata.team=x%20y&metadata.colour=blue") == {blue.id}
    assert found("metadata.colour=green") == set()
    assert red.get().json()["metadata"] == {"colour": "red", "team": "x y"}


def test_the_list_comes_in_pages(stack: Stack, opened: Open) -> None:
    made = {opened(metadata={"paged": "yes"}).id for _ in range(3)}
    seen, query = [], "metadata.paged=yes&limit=2"
    page = stack.call("GET", f"/v1/sessions?{query}").json()
    while True:
        seen += [one["session_id"] for one in page["sessions"]]
        if page["next_cursor"] is None:
            break
        page = stack.call(
            "GET", "/v1/sessions", params={"metadata.paged": "yes", "cursor": page["next_cursor"]}
        ).json()
    assert (len(seen), set(seen)) == (3, made)


def test_a_session_can_be_looked_at(opened: Open) -> None:
    session = opened(user_id="seen")
    told = session.get().json()
    assert told["session_id"] == session.id
    assert "status" not in told or told["status"] is None
    assert {**session.told, **told} == {**session.told, **told, "state": "running", "user_id": "seen"}


def test_using_a_session_renews_its_lease(opened: Open) -> None:
    session = opened(timeout=100)
    before = session.get().json()
    time.sleep(1.05)  # a lease that started within the last second is not worth a write
    session.output("true")
    after = session.get().json()
    assert after["expires_at"] > before["expires_at"]
    assert after["last_used_at"] > before["last_used_at"]


def test_looking_at_a_session_does_not_renew_its_lease(opened: Open) -> None:
    session = opened(timeout=100)
    assert session.get().json()["expires_at"] == session.get().json()["expires_at"]


def test_a_session_can_be_extended(stack: Stack, opened: Open) -> None:
    session = opened(timeout=100)
    longer = stack.call("POST", f"/v1/sessions/{session.id}/extend", json={"timeout": 5000}).json()
    assert longer["timeout"] == 5000
    assert longer["expires_at"] > session.told["expires_at"]
    again = stack.call("POST", f"/v1/sessions/{session.id}/extend").json()
    assert again["timeout"] == 5000
    refused(stack.call("POST", f"/v1/sessions/{session.id}/extend", json={"timeout": 86401}), "timeout")


def test_a_closed_session_is_gone_with_its_container_and_directory_and_says_why(
    stack: Stack, opened: Open
) -> None:
    session = opened()
    container, directories = session.container, len(stack.directories())
    assert session.close().status_code == 204
    assert container not in docker("ps", "-a", "--format", "{{.Names}}").split()
    assert len(stack.directories()) == directories - 1
    for answer in (session.get(), session.execute("true"), session.close()):
        ended(answer, "closed")
    ended(stack.call("POST", "/cleanup", json={"session_id": session.id}), "closed")
    ended(stack.call("POST", f"/v1/sessions/{session.id}/extend"), "closed")


def test_a_closed_session_leaves_the_list(stack: Stack, opened: Open) -> None:
    session = opened(metadata={"leaves": "yes"})
    session.close()
    assert stack.call("GET", "/v1/sessions?metadata.leaves=yes").json()["sessions"] == []


def test_closing_while_a_command_runs_answers_that_command_too(stack: Stack, opened: Open) -> None:
    session = opened()
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(session.execute("sleep 30")))
    thread.start()
    time.sleep(0.5)
    began = time.monotonic()
    assert session.close().status_code == 204
    thread.join(20)
    assert time.monotonic() - began < 10
    ended(answers[0], "closed")


def test_another_tenants_session_is_answered_exactly_like_one_that_never_was(
    stack: Stack, opened: Open
) -> None:
    session = opened(user_id="mine")
    stranger = stack.new_key("stranger")
    calls: list[tuple[str, str, Any]] = [
        ("GET", "/v1/sessions/{}", None),
        ("DELETE", "/v1/sessions/{}", None),
        ("POST", "/v1/sessions/{}/extend", {}),
        ("POST", "/v1/sessions/{}/execute", {"command": "touch stolen"}),
        ("POST", "/execute", {"session_id": "{}", "command": "touch stolen"}),
        ("POST", "/cleanup", {"session_id": "{}"}),
    ]
    for method, path, body in calls:
        bodies = []
        for session_id in (session.id, NOWHERE):
            asked = None if body is None else {n: v.replace("{}", session_id) for n, v in body.items()}
            answer = stack.call(method, path.format(session_id), key=stranger, json=asked)
            told = problem(answer, 404, "session_not_found")
            del told["request_id"]
            bodies.append(told)
        assert bodies[0] == bodies[1]
    assert stack.call("GET", "/v1/sessions", key=stranger).json()["sessions"] == []
    assert session.output("ls") == ""


def test_an_ended_session_of_another_tenant_is_not_found_either(stack: Stack, opened: Open) -> None:
    session = opened()
    session.close()
    problem(
        stack.call("GET", f"/v1/sessions/{session.id}", key=stack.new_key("stranger")),
        404,
        "session_not_found",
    )


def test_the_same_user_name_of_another_tenant_is_another_user(stack: Stack, opened: Open) -> None:
    mine = opened(user_id="shared-name")
    stranger = stack.new_key("stranger")
    theirs = stack.call("POST", "/create_session", key=stranger, json={"user_id": "shared-name"}).json()
    assert (theirs["status"], theirs["session_id"] != mine.id) == ("created", True)
    stack.call("DELETE", f"/v1/sessions/{theirs['session_id']}", key=stranger)


def test_a_session_cannot_see_another_ones_files_or_processes(opened: Open) -> None:
    one, other = opened(), opened()
    one.output("echo mine > /workspace/secret; echo mine > /tmp/secret; sleep 91.5 &")
    assert (
        other.output("ls -A /workspace; cat /tmp/secret 2>/dev/null; pgrep -f 91.5 || echo none") == "none\n"
    )
