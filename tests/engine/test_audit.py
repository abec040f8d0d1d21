"""Every act has its record: who, when, from where, what and with which outcome."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests
import websocket
from expect import problem, refused
from plain import Open
from stack import Stack, docker, running

from server import config as configuration
from server import instance as installation
from server.api import acts
from server.app import build
from server.audit.ledger import Ledger
from server.audit.proof import Finding, examine

Record = dict[str, Any]


def audit(stack: Stack, key: str | None = None, **query: Any) -> list[Record]:
    """All records that match, page by page."""
    found: list[Record] = []
    while True:
        answer = stack.call("GET", "/v1/audit", key=key, params={"limit": 1000, **query})
        assert answer.status_code == 200, answer.text
        found += answer.json()["records"]
        if answer.json()["next_cursor"] is None:
            return found
        query["cursor"] = answer.json()["next_cursor"]


def record_of(stack: Stack, answer: requests.Response, key: str | None = None) -> Record:
    """The one record that this request has."""
    wanted = answer.headers["X-Request-Id"]
    (found,) = [one for one in audit(stack, key) if one["request_id"] == wanted]
    return found


def examined(stack: Stack) -> list[Finding]:
    """As an operator would, whether or not the server runs."""
    config = configuration.load({"SANDBOX_STATE_DIR": stack.env["SANDBOX_STATE_DIR"]})
    ledger = Ledger(config.audit_path, installation.load(config).audit_key)
    try:
        return examine(ledger)
    finally:
        ledger.close()


def anonymous(stack: Stack) -> list[Record]:
    with closing(sqlite3.connect(stack.dir / "state" / "store" / "audit.db")) as connection:
        rows = connection.execute("SELECT line FROM records WHERE chain = '@anonymous' ORDER BY seq")
        return [json.loads(line) for (line,) in rows]


def test_a_session_is_recorded_from_its_beginning_to_its_end(stack: Stack) -> None:
    opened = stack.call("POST", "/create_session", json={"user_id": "ada", "metadata": {"secret": "label"}})
    session = opened.json()["session_id"]
    path = f"/v1/sessions/{session}"
    stack.call("POST", f"{path}/extend", json={"timeout": 100})
    stack.call("POST", f"{path}/execute", json={"command": "exit 3"})
    stack.call("POST", "/cleanup", json={"session_id": session})
    found = audit(stack, session=session)
    assert [one["action"] for one in found] == [
        "session.create",
        "session.extend",
        "execution.run",
        "session.close",
    ]
    assert {(one["user"], one["outcome"], one["address"], one["chain"]) for one in found} == {
        ("ada", "done", "127.0.0.1", "default")
    }
    key_id = stack.key.removeprefix("e2b_")[:16]
    assert {one["actor"] for one in found} == {f"key:{key_id}"}
    assert found[2]["details"]["exit_code"] == 3
    assert found == audit(stack, user="ada", session=session)


def test_of_a_command_its_hash_is_kept_and_of_secrets_nothing(stack: Stack, opened: Open) -> None:
    session = opened(env={"TOKEN": "swordfish-1"})
    answer = session.execute("echo swordfish-2", stdin="swordfish-3", env={"MORE": "swordfish-4"})
    details = record_of(stack, answer)["details"]
    assert details["command_sha256"] == hashlib.sha256(b"echo swordfish-2").hexdigest()
    assert details["execution_id"] == answer.json()["execution_id"]
    for place in filter(Path.is_file, (stack.dir / "state" / "store").rglob("*")):
        assert b"swordfish" not in place.read_bytes()
        assert stack.key[20:].encode() not in place.read_bytes()


def test_changes_of_files_are_recorded_with_their_paths(stack: Stack, opened: Open) -> None:
    files = f"/v1/sessions/{opened().id}/files"
    made = [
        ("file.mkdir", stack.call("POST", f"{files}/mkdir", json={"path": "d"})),
        ("file.write", stack.call("PUT", f"{files}/content", params={"path": "d/a"}, data=b"content")),
        ("file.edit", stack.call("POST", f"{files}/edit", json={"path": "d/a", "old": "con", "new": "x"})),
        ("file.copy", stack.call("POST", f"{files}/copy", json={"source": "d/a", "destination": "d/b"})),
        ("file.move", stack.call("POST", f"{files}/move", json={"source": "d/b", "destination": "d/c"})),
        ("file.delete", stack.call("DELETE", files, params={"path": "d", "recursive": "true"})),
    ]
    for action, answer in made:
        assert answer.status_code < 300, answer.text
        found = record_of(stack, answer)
        assert (found["action"], found["outcome"], found["status"]) == (action, "done", answer.status_code)
        paths = {found["details"].get(name) for name in ("path", "source", "destination")}
        assert paths & {"d", "d/a", "d/b", "d/c"}


def test_reading_is_not_recorded(stack: Stack, opened: Open) -> None:
    session = opened()
    before = len(audit(stack))
    session.get()
    stack.call("GET", f"/v1/sessions/{session.id}/files")
    stack.call("GET", "/v1/sessions")
    stack.call("POST", f"/v1/sessions/{session.id}/files/search", json={"pattern": "x"})
    assert len(audit(stack)) == before


def test_looking_into_a_workspace_is_recorded_if_a_session_was_opened_for_it(
    stack: Stack, opened: Open
) -> None:
    session = opened(workspace="looked-into")
    session.output("echo mine > file")
    path = "/v1/workspaces/looked-into/files"
    stack.call("GET", path)
    session.close()
    assert audit(stack, action="workspace.visit") == []
    assert [stack.call("GET", path).status_code for _ in range(2)] == [200, 200]
    (record,) = audit(stack, action="workspace.visit")
    assert record["outcome"] == "done" and record["session"] not in (None, session.id)
    assert record["details"]["name"] == "looked-into"
    stack.call("DELETE", "/v1/workspaces/looked-into")


def test_what_is_told_again_is_recorded_as_that(stack: Stack, opened: Open) -> None:
    session = opened()
    for _ in range(2):
        session.execute("true", headers={"Idempotency-Key": "told-again"})
    found = audit(stack, action="execution.run", session=session.id)
    assert [one["details"].get("repeated") for one in found] == [None, True]
    for _ in range(2):
        stack.call("POST", "/run", json={"command": "true"}, headers={"Idempotency-Key": "told-again"})
    found = [one for one in audit(stack, action="execution.run") if one["details"]["route"] == "/run"]
    assert [one["details"].get("repeated") for one in found][-2:] == [None, True]


def test_what_is_refused_is_recorded_with_its_reason(stack: Stack, opened: Open) -> None:
    stranger = stack.new_key("stranger-to-audit")
    session = opened()
    theirs = [
        stack.call("GET", f"/v1/sessions/{session.id}", key=stranger),
        stack.call("DELETE", f"/v1/sessions/{session.id}", key=stranger),
        stack.call("POST", "/execute", key=stranger, json={"session_id": session.id, "command": "id"}),
        stack.call("GET", "/v1/snapshots/none", key=stranger),
    ]
    for answer in theirs:
        found = record_of(stack, answer, stranger)
        assert (found["outcome"], found["status"]) == ("refused", 404)
        assert found["code"].endswith("_not_found")
        assert found["user"] is None
    wrong = stack.call("POST", "/execute", key=stranger, json={"session_id": "x", "nonsense": 1})
    assert record_of(stack, wrong, stranger)["code"] == "invalid_request"
    assert {one["chain"] for one in audit(stack, stranger)} == {"stranger-to-audit"}
    assert [one for one in audit(stack, session=session.id) if one["outcome"] != "done"] == []


def test_what_comes_without_a_key_has_a_chain_that_no_tenant_sees(stack: Stack) -> None:
    answer = stack.call("POST", "/create_session", key="e2b_wrong", json={})
    problem(answer, 401, "unauthorized")
    (found,) = [one for one in anonymous(stack) if one["request_id"] == answer.headers["X-Request-Id"]]
    assert (found["actor"], found["address"], found["code"]) == ("anonymous", "127.0.0.1", "unauthorized")
    assert [one for one in audit(stack) if one["actor"] == "anonymous"] == []
    assert "e2b_wrong" not in json.dumps(found)


def test_no_route_that_changes_something_goes_unrecorded(stack: Stack) -> None:
    """Also those that are added later: each is walked with a key and ids of nobody."""
    config = configuration.load({"SANDBOX_STATE_DIR": str(stack.dir / "walked")})
    installation.prepare(config)
    walked = []
    for rule in build(config).url_map.iter_rules():
        for method in sorted((rule.methods or set()) & {"POST", "PUT", "PATCH", "DELETE"}):
            path = re.sub(r"<[^>]*>", "none", rule.rule)
            answer = stack.call(method, path, json={})
            if rule.endpoint not in acts.READS:
                walked.append(answer.headers["X-Request-Id"])
    recorded = [one["request_id"] for one in audit(stack)]
    assert len(walked) > 25
    assert [recorded.count(one) for one in walked] == [1] * len(walked)
    stack.close_sessions()


def test_pages_and_filters_and_an_export_say_the_same(stack: Stack, opened: Open) -> None:
    session = opened()
    for _ in range(7):
        session.execute("true")
    query = {"session": session.id, "action": "execution.run"}
    by_page = audit(stack, limit=2, **query)
    assert len(by_page) == 7
    newest_first = audit(stack, limit=3, order="desc", **query)
    assert newest_first == by_page[::-1]
    assert (
        audit(stack, since=by_page[3]["at"], until=by_page[6]["at"], **query)[0]["seq"] >= by_page[3]["seq"]
    )
    export = stack.call("GET", "/v1/audit", headers={"Accept": "application/x-ndjson"}, params=query)
    assert export.headers["Content-Type"].startswith("application/x-ndjson")
    assert [json.loads(line) for line in export.text.splitlines()] == by_page
    refused(stack.call("GET", "/v1/audit", params={"since": "yesterday"}), "since")


def test_an_export_of_all_can_be_checked_by_whoever_has_it(stack: Stack, opened: Open) -> None:
    opened()
    export = stack.call("GET", "/v1/audit", headers={"Accept": "application/x-ndjson"}).text
    prev = "0" * 64
    for line in export.splitlines():
        assert json.loads(line)["prev"] == prev
        prev = hashlib.sha256((line.rpartition(',"hash":')[0] + "}").encode()).hexdigest()
        assert json.loads(line)["hash"] == prev


def test_a_terminal_is_recorded_when_it_begins(stack: Stack, opened: Open) -> None:
    session = opened()
    url = f"{stack.url.replace('http', 'ws')}/v1/sessions/{session.id}/terminal"
    connection = websocket.create_connection(url, header=[f"Authorization: Bearer {stack.key}"], timeout=30)
    connection.recv()
    (found,) = audit(stack, session=session.id, action="terminal.open")
    assert (found["outcome"], found["status"]) == ("done", 101)
    connection.close()


def test_the_chains_of_a_running_server_are_whole(stack: Stack, opened: Open) -> None:
    session = opened()
    threads = [threading.Thread(target=session.execute, args=("true",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    found = {one.chain: one for one in examined(stack)}
    for thread in threads:
        thread.join(30)
    assert found["default"].is_whole, found["default"].faults
    assert all(one.is_whole for one in examined(stack))


def test_the_operator_sees_every_chain_and_his_own_acts_are_in_one(stack: Stack) -> None:
    admin = str(json.loads(stack.ctl("key", "new", "--admin", "--json"))["key"])
    made = stack.call("POST", "/v1/admin/keys", key=admin, json={"tenant": "default", "name": "audited"})
    revoked = stack.call("DELETE", f"/v1/admin/keys/{made.json()['key_id']}", key=admin)
    answer = stack.call("GET", "/v1/admin/audit", key=admin, params={"order": "desc", "limit": 2})
    newest = {one["request_id"]: one for one in answer.json()["records"]}
    for act, action in ((made, "key.create"), (revoked, "key.revoke")):
        found = newest[act.headers["X-Request-Id"]]
        assert (found["action"], found["outcome"], found["chain"]) == (action, "done", "@instance")
        assert found["actor"] == f"key:{admin.removeprefix('e2b_')[:16]}"
        assert made.json()["key"] not in json.dumps(found)
    by_command = stack.call("GET", "/v1/admin/audit", key=admin, params={"action": "key.create"}).json()
    assert any(one["actor"].startswith("operator:") for one in by_command["records"])
    for chain in ("default", "@anonymous"):
        told = stack.call("GET", "/v1/admin/audit", key=admin, params={"chain": chain}).json()["records"]
        assert {one["chain"] for one in told} == {chain}
    refused_one = stack.call("GET", "/v1/admin/audit")
    assert record_of(stack, refused_one)["code"] == problem(refused_one, 403, "scope_missing")["code"]


@pytest.fixture(scope="module")
def outspoken() -> Iterator[Stack]:
    """A server that keeps commands, with short leases, that may be killed."""
    with running(SANDBOX_AUDIT_COMMANDS="text", SANDBOX_LEASE="2") as server:
        yield server


def test_a_command_is_kept_as_text_where_that_is_wanted(outspoken: Stack) -> None:
    session = outspoken.call("POST", "/create_session", json={"timeout": 60}).json()["session_id"]
    for command in ("echo one", ["echo", "two"]):
        answer = outspoken.call("POST", "/execute", json={"session_id": session, "command": command})
        kept = record_of(outspoken, answer)["details"]["command"]
        assert kept == command if isinstance(command, str) else json.loads(kept) == command
    long = "true " + "é" * 5000
    answer = outspoken.call("POST", "/execute", json={"session_id": session, "command": long})
    details = record_of(outspoken, answer)["details"]
    assert (details["command"], details["command_bytes"]) == (long[:4096], 10005)
    assert details["command_sha256"] == hashlib.sha256(long.encode()).hexdigest(), "of all of it"
    outspoken.call("DELETE", f"/v1/sessions/{session}")


def test_a_session_that_expires_or_dies_is_recorded_as_the_servers_doing(outspoken: Stack) -> None:
    expiring = outspoken.call("POST", "/create_session", json={"user_id": "sleepy"}).json()["session_id"]
    dying = outspoken.call("POST", "/create_session", json={"timeout": 600}).json()["session_id"]
    docker("kill", outspoken.container_of(dying))
    outspoken.call("POST", "/execute", json={"session_id": dying, "command": "true"})  # it is found out
    eventually_recorded(outspoken, "session.died", dying)
    found = eventually_recorded(outspoken, "session.expired", expiring)
    assert (found["actor"], found["user"], found["details"]) == ("server", "sleepy", {"cause": "expired"})


def eventually_recorded(stack: Stack, action: str, session: str) -> Record:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        stack.call("GET", f"/v1/sessions/{session}")
        if found := audit(stack, action=action, session=session):
            assert len(found) == 1
            return found[0]
        time.sleep(0.2)
    raise AssertionError(f"no {action}")


def test_nothing_answered_is_unrecorded_after_kill_9(outspoken: Stack) -> None:
    """Under load, at a moment nobody chose."""
    session = outspoken.call("POST", "/create_session", json={"timeout": 60}).json()["session_id"]
    answered: list[str] = []

    def work() -> None:
        while True:
            try:
                body = {"session_id": session, "command": "true", "shell": None}
                answer = outspoken.call("POST", "/execute", json=body)
            except requests.RequestException:
                return
            answered.append(answer.headers["X-Request-Id"])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while len(answered) < 20 and time.monotonic() < deadline:
        time.sleep(0.05)
    outspoken.kill("web", signal.SIGKILL)
    for thread in threads:
        thread.join(60)
    outspoken.start_web()
    outspoken.wait_ready()
    recorded = {one["request_id"] for one in audit(outspoken)}
    assert len(answered) >= 20
    assert set(answered) <= recorded
    assert all(one.is_whole for one in examined(outspoken))
    outspoken.call("DELETE", f"/v1/sessions/{session}")


def test_what_came_of_it_is_named(stack: Stack, opened: Open) -> None:
    """Sessions, snapshots and files that a request has made can be found from its record."""
    path = f"/v1/sessions/{opened().id}"
    taken = stack.call("POST", f"{path}/snapshots", json={})
    assert record_of(stack, taken)["details"]["snapshot"] == taken.json()["snapshot_id"]
    forked = stack.call("POST", f"{path}/fork?count=2", json={})
    made = [one["session_id"] for one in forked.json()["sessions"]]
    assert record_of(stack, forked)["details"]["sessions"] == made
    sent = stack.call("POST", "/upload", files={"file": ("a.txt", b"a")})
    assert record_of(stack, sent)["details"]["files"] == [sent.json()["files"][0]["file_id"]]
    for session in made:
        stack.call("DELETE", f"/v1/sessions/{session}")
    stack.call("DELETE", f"/v1/snapshots/{taken.json()['snapshot_id']}")
    stack.call("DELETE", f"/v1/uploads/{sent.json()['files'][0]['file_id']}")
