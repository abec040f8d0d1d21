"""One command in a fresh sandbox that is gone afterwards: POST /run, and ephemeral sessions."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
from expect import ended, eventually, problem, refused
from stack import Stack, running

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server() -> Iterator[Stack]:
    """One of its own: what is left behind can be counted, and it may be killed."""
    with running() as server:
        yield server


@pytest.fixture(autouse=True)
def nothing_is_left(server: Stack) -> Iterator[None]:
    yield
    eventually(lambda: server.containers() == server.directories() == server.volumes() == [], seconds=90)
    assert server.call("GET", "/v1/sessions").json()["sessions"] == []


def run(server: Stack, command: Any, **fields: Any) -> requests.Response:
    return server.call("POST", "/run", json={"command": command, **fields})


def test_one_command_is_run_in_a_sandbox_of_its_own(server: Stack) -> None:
    told = run(server, "echo out; echo err >&2; echo data > file; exit 3").json()
    assert (told["exit_code"], told["stdout"], told["stderr"]) == (3, "out\n", "err\n")
    told = run(server, "cat; ls; echo $NAME", stdin="in\n", env={"NAME": "Ada"}).json()
    assert told["stdout"] == "in\nAda\n"
    told = run(server, "import os; os.getcwd()", language="python", cwd="/tmp").json()
    assert told["value"] == "'/tmp'"
    assert run(server, ["echo", "$HOME"]).json()["stdout"] == "$HOME\n"


def test_the_session_of_a_run_is_told_to_be_spent(server: Stack) -> None:
    session = run(server, "true").json()["session_id"]
    ended(server.call("GET", f"/v1/sessions/{session}"), "spent")


def test_a_run_gets_the_size_and_the_files_that_it_asks_for(server: Stack) -> None:
    upload = server.call("POST", "/upload", files={"file": ("notes.txt", b"uploaded\n")}).json()
    file_id = upload["files"][0]["file_id"]
    told = run(server, "cat notes.txt; nproc", files=[file_id], cpus=2, memory=128 << 20).json()
    assert told["stdout"] == "uploaded\n2\n"


def test_a_run_that_times_out_is_gone_too(server: Stack) -> None:
    told = run(server, "sleep 600", timeout=1).json()
    assert told["timed_out"] is True


def test_a_run_is_streamed_as_it_happens(server: Stack) -> None:
    answer = run(server, "echo one; echo two", stream=True)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert [event["event"] for event in events if event["event"] != "keepalive"][-1] == "end"
    assert "".join(event.get("text", "") for event in events) == "one\ntwo\n"


def ask_and_hang_up(server: Stack, body: dict[str, Any], head: str = "") -> str:
    """The session of a run whose caller leaves a moment into its command."""
    text = json.dumps(body).encode()
    head = f"POST /run HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {server.key}\r\n{head}"
    head += f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as caller:
        caller.sendall(head.encode() + text)
        session = only_session(server)
        time.sleep(0.5)
    return session


def only_session(server: Stack) -> str:
    eventually(lambda: len(server.call("GET", "/v1/sessions").json()["sessions"]) == 1)
    return str(server.call("GET", "/v1/sessions").json()["sessions"][0]["session_id"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_run_whose_caller_hangs_up_is_gone(server: Stack, stream: bool) -> None:
    ask_and_hang_up(server, {"command": "sleep 600", "timeout": 600, "stream": stream})
    # `nothing_is_left` waits far shorter than the command would have taken.


def test_a_run_whose_web_server_is_killed_is_gone_when_its_command_has_ended(server: Stack) -> None:
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(run, server, "sleep 3")
        eventually(lambda: len(server.containers()) == 1)
        eventually(lambda: len(server.call("GET", "/v1/sessions").json()["sessions"]) == 1)
        server.kill("web")
        with pytest.raises(requests.RequestException):
            asking.result(timeout=60)
    server.start_web()
    server.wait_ready()


def test_a_run_that_cannot_begin_leaves_nothing(server: Stack) -> None:
    refused(run(server, "true", cwd="/nowhere"), "cwd")
    refused(run(server, "true", image="unheard-of"), "image")
    refused(run(server, "true", background=True), "background")
    refused(run(server, "true", timeout=1e6), "timeout")
    refused(run(server, ""), "command")
    refused(run(server, "true", files=["0" * 32]), "files")


def keyed(server: Stack, command: str, key: str, **fields: Any) -> requests.Response:
    body = {"command": command, **fields}
    return server.call("POST", "/run", json=body, headers={"Idempotency-Key": key})


def test_a_run_is_answered_again_for_its_idempotency_key(server: Stack) -> None:
    first = keyed(server, "echo once; date +%N; printf '\\377'; exit 3", "only-once")
    assert first.json()["exit_code"] == 3
    again = keyed(server, "echo once; date +%N; printf '\\377'; exit 3", "only-once")
    assert again.status_code == 200
    assert again.json() == first.json()
    assert again.headers["Content-Type"] == first.headers["Content-Type"] == "application/json"
    problem(keyed(server, "echo other", "only-once"), 409, "idempotency_conflict")


def test_runs_with_the_same_key_at_once_are_one(server: Stack) -> None:
    upload = server.call("POST", "/upload", files={"file": ("log", b"begun\n")}).json()["files"][0]["file_id"]
    with ThreadPoolExecutor(5) as pool:
        asked = [
            pool.submit(keyed, server, "sleep 1; date +%N", "together", files=[upload]) for _ in range(5)
        ]
        answers = [one.result(timeout=60).json() for one in asked]
    assert answers[0]["exit_code"] == 0
    assert all(answer == answers[0] for answer in answers)


def test_a_run_whose_server_was_killed_is_shared_by_who_asks_again(server: Stack) -> None:
    command = "sleep 4; date +%N"
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(keyed, server, command, "killed")
        eventually(lambda: len(server.call("GET", "/v1/sessions").json()["sessions"]) == 1)
        session = server.call("GET", "/v1/sessions").json()["sessions"][0]["session_id"]
        time.sleep(0.5)  # a moment into the command
        server.kill("web")
        with pytest.raises(requests.RequestException):
            asking.result(timeout=60)
    server.start_web()
    server.wait_ready()
    again = keyed(server, command, "killed").json()
    assert (again["session_id"], again["exit_code"]) == (session, 0)
    assert keyed(server, command, "killed").json() == again


def test_what_a_run_came_to_is_kept_when_nobody_was_left_to_hear_it(server: Stack) -> None:
    """Its caller hung up and did not ask again until the session had been ended."""
    body = {"command": "sleep 2; date +%N"}
    session = ask_and_hang_up(server, body, "Idempotency-Key: unheard\r\n")
    eventually(lambda: server.call("GET", f"/v1/sessions/{session}").status_code == 410, seconds=60)
    ended(server.call("GET", f"/v1/sessions/{session}"), "spent")
    told = server.call("POST", "/run", data=json.dumps(body), headers={**JSON, "Idempotency-Key": "unheard"})
    assert (told.json()["session_id"], told.json()["exit_code"]) == (session, 0)
    assert len(told.json()["stdout"]) > 1


def test_who_hangs_up_does_not_take_a_shared_run_with_it(server: Stack) -> None:
    upload = server.call("POST", "/upload", files={"file": ("log", b"begun\n")}).json()["files"][0]["file_id"]
    body = {"command": "echo more >> log; sleep 3; cat log", "files": [upload]}
    headers = {**JSON, "Idempotency-Key": "stays"}
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(server.call, "POST", "/run", data=json.dumps(body), headers=headers)
        only_session(server)
        ask_and_hang_up(server, body, "Idempotency-Key: stays\r\n")
        told = asking.result(timeout=60)
    assert told.json()["stdout"] == "begun\nmore\n"
    again = server.call("POST", "/run", data=json.dumps(body), headers=headers)
    assert again.json() == told.json()


def test_a_streamed_run_is_not_harmed_by_who_asks_for_the_same(server: Stack) -> None:
    upload = server.call("POST", "/upload", files={"file": ("log", b"begun\n")}).json()["files"][0]["file_id"]
    fields = {"files": [upload], "stream": True}
    command = "echo more >> log; sleep 2; cat log"
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(keyed, server, command, "streamed", **fields)
        only_session(server)
        time.sleep(0.5)  # a moment into the command
        ended(keyed(server, command, "streamed", **fields), "spent")
        told = asking.result(timeout=60).text
    events = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: ")]
    assert "".join(event.get("text", "") for event in events) == "begun\nmore\n"
    assert events[-1]["result"]["exit_code"] == 0
    ended(keyed(server, command, "streamed", **fields), "spent")


def test_a_run_is_answered_again_when_its_uploads_are_gone(server: Stack) -> None:
    upload = server.call("POST", "/upload", files={"file": ("log", b"once\n")}).json()["files"][0]["file_id"]
    first = keyed(server, "cat log", "uploaded", files=[upload])
    assert first.json()["stdout"] == "once\n"
    assert server.call("DELETE", f"/v1/uploads/{upload}").status_code == 204
    assert keyed(server, "cat log", "uploaded", files=[upload]).json() == first.json()
    refused(keyed(server, "cat log", "uploaded-later", files=[upload]), "files")


def test_a_run_for_which_there_was_no_room_leaves_its_key_free(server: Stack) -> None:
    key = server.new_key("narrow")
    server.ctl("tenant", "set", "narrow", "--limit=executions=1")
    time.sleep(0.3)  # every worker knows it a tenth of a second later

    def ask(command: str, name: str) -> requests.Response:
        headers = {"Idempotency-Key": name}
        return server.call("POST", "/run", key=key, json={"command": command}, headers=headers)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask, "sleep 3; echo first", "first")
        eventually(lambda: len(server.call("GET", "/v1/sessions", key=key).json()["sessions"]) == 1)
        time.sleep(0.5)  # a moment into the command
        problem(ask("echo no room", "second"), 429, "too_many_executions")
        problem(ask("sleep 3; echo first", "first"), 429, "too_many_executions")
        assert asking.result(timeout=60).json()["stdout"] == "first\n"
    assert ask("echo other", "second").json()["stdout"] == "other\n"


def test_a_run_that_was_refused_leaves_its_key_free(server: Stack) -> None:
    refused(keyed(server, "true", "refused", cwd="/nowhere"), "cwd")
    assert keyed(server, "echo now", "refused").json()["stdout"] == "now\n"


def test_what_runs_answered_is_kept_within_a_bound(server: Stack) -> None:
    for number in range(6):
        told = keyed(server, "head -c 900000 /dev/zero | tr '\\0' x", f"large-{number}")
        assert told.json()["stdout_bytes"] == 900_000
    problem(keyed(server, "head -c 900000 /dev/zero | tr '\\0' x", "large-0"), 409, "result_forgotten")
    assert keyed(server, "head -c 900000 /dev/zero | tr '\\0' x", "large-5").json() == told.json()


def test_an_ephemeral_session_is_over_with_its_first_command(server: Stack) -> None:
    told = server.call("POST", "/v1/sessions", json={"ephemeral": True}).json()
    at = f"/v1/sessions/{told['session_id']}"
    assert told["ephemeral"] is True
    assert server.call("PUT", f"{at}/files/content?path=file", data=b"put before\n").status_code < 300
    assert (
        server.call("POST", f"{at}/execute", json={"command": "cat file"}).json()["stdout"] == "put before\n"
    )
    ended(server.call("POST", f"{at}/execute", json={"command": "true"}), "spent")


def test_an_ephemeral_session_runs_one_command_whoever_asks_at_once(server: Stack) -> None:
    at = f"/v1/sessions/{server.call('POST', '/v1/sessions', json={'ephemeral': True}).json()['session_id']}"
    body = {"command": "sleep 1; echo ran"}
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: server.call("POST", f"{at}/execute", json=body), range(6)))
    assert sorted(answer.status_code for answer in answers) == [200, 410, 410, 410, 410, 410]


def test_an_ephemeral_session_takes_nothing_that_nobody_waits_for(server: Stack) -> None:
    at = f"/v1/sessions/{server.call('POST', '/v1/sessions', json={'ephemeral': True}).json()['session_id']}"
    for body in ({"command": "true", "background": True}, {"command": "true", "wait": 1}):
        refused(server.call("POST", f"{at}/execute", json=body), "session_id")
    refused(server.call("POST", f"{at}/executions", json={"command": "true"}), "session_id")
    assert server.call("POST", f"{at}/execute", json={"command": "true", "stream": True}).status_code == 200
    eventually(lambda: server.call("GET", at).status_code == 410)
    ended(server.call("GET", at), "spent")
    refused(server.call("POST", "/v1/sessions", json={"ephemeral": True, "user_id": "ada"}), "body")
