"""Snapshots: going back, going apart, and undoing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
from expect import problem, refused
from plain import Open, Session, opening
from stack import Stack, running

MIB = 1 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[Stack]:
    settings = {
        "SANDBOX_DISK": "64m",
        "SANDBOX_TENANT_DISK": "160m",
        "SANDBOX_SNAPSHOTS_MAX": "4",
        "SANDBOX_CHECKPOINTS_MAX": "3",
        "SANDBOX_POOL_MIN": "2",
        "SANDBOX_POOL_MAX": "2",
    }
    with running(**settings) as stack:
        yield stack


@pytest.fixture
def opened(server: Stack) -> Iterator[Open]:
    with opening(server) as open_one:
        yield open_one
    for snapshot in server.call("GET", "/v1/snapshots").json()["snapshots"]:
        assert server.call("DELETE", f"/v1/snapshots/{snapshot['snapshot_id']}").status_code == 204


def post(session: Session, path: str, **body: Any) -> requests.Response:
    return session.stack.call("POST", f"/v1/sessions/{session.id}/{path}", json=body)


def snapshot(session: Session, **body: Any) -> str:
    answer = post(session, "snapshots", **body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["snapshot_id"])


def attached(stack: Stack, told: dict[str, Any]) -> Session:
    return Session(stack, told["session_id"], told)


def test_a_session_goes_back_to_a_snapshot_in_place(server: Stack, opened: Open) -> None:
    """Files, directory and exported variables are those of back then; what ran is over; the id stays."""
    session = opened(env={"GIVEN": "by the session"})
    session.output("echo one > file; mkdir -p sub; cd sub; export MINE='of the \"shell\"'; plain=1; (exit 7)")
    taken = snapshot(session, name="before")
    assert session.output("echo $?") == "7\n"
    session.output("echo two > ../file; rm -rf /workspace/sub; cd /; unset MINE; export NEW=1")
    session.execute("sleep 1000 > /workspace/held", background=True)
    answer = post(session, "restore", snapshot_id=taken)
    assert (answer.status_code, answer.json()["session_id"]) == (200, session.id)
    assert session.output('pwd; cat ../file; echo "$MINE|$GIVEN|$NEW"; ls /workspace; pgrep sleep') == (
        '/workspace/sub\none\nof the "shell"|by the session|\nfile\nsub\n'
    )
    assert session.execute("echo $GIVEN", shell=None).json()["output"] == "by the session\n"
    assert len(server.containers()) <= 4  # this one, and what is warm


def test_snapshots_are_listed_named_and_deleted(server: Stack, opened: Open) -> None:
    session = opened()
    first, second = snapshot(session, name="first"), snapshot(session)
    listed = server.call("GET", f"/v1/sessions/{session.id}/snapshots").json()["snapshots"]
    assert [(one["snapshot_id"], one["name"], one["kind"]) for one in listed] == [
        (first, "first", "snapshot"),
        (second, None, "snapshot"),
    ]
    assert server.call("GET", f"/v1/snapshots/{first}").json() == listed[0]
    under, elsewhere = (
        f"/v1/sessions/{session.id}/snapshots/{first}",
        f"/v1/sessions/{opened().id}/snapshots/{first}",
    )
    assert server.call("GET", under).json() == listed[0]
    for method in ("GET", "DELETE"):
        problem(server.call(method, elsewhere), 404, "snapshot_not_found")
    assert server.call("DELETE", under).status_code == 204
    problem(server.call("DELETE", f"/v1/snapshots/{first}"), 404, "snapshot_not_found")
    problem(post(session, "restore", snapshot_id=first), 404, "snapshot_not_found")
    problem(server.call("POST", "/create_session", json={"snapshot": first}), 404, "snapshot_not_found")
    for _ in range(3):
        snapshot(session)
    assert problem(post(session, "snapshots"), 429, "too_many_snapshots")["allowed"] == 4
    refused(post(session, "snapshots", name="a\nb"), "name")


def test_a_snapshot_outlives_its_session_and_begins_others(server: Stack, opened: Open) -> None:
    """Each has a copy of its own; a workspace with a name can begin with it too."""
    session = opened()
    session.output("echo template > file; mkdir w; cd w; export KIND=template")
    taken = snapshot(session)
    session.close()
    one, two = opened(snapshot=taken, env={"KIND": "given"}), opened(snapshot=taken, workspace="begun")
    assert one.output("pwd; cat ../file; echo $KIND; echo one > ../file") == "/workspace/w\ntemplate\ngiven\n"
    assert two.output("cat ../file; echo $KIND") == "template\ntemplate\n"
    two.close()
    refused(
        server.call("POST", "/create_session", json={"snapshot": taken, "workspace": "begun"}), "snapshot"
    )
    assert server.call("DELETE", "/v1/workspaces/begun").status_code == 204


def test_a_fork_is_independent_and_like_its_origin(server: Stack, opened: Open) -> None:
    origin = opened(metadata={"kind": "origin"}, user_id="forker")
    origin.output("echo shared > file; mkdir deep; cd deep; export STEP=3")
    answer = server.call("POST", f"/v1/sessions/{origin.id}/fork?count=3")
    assert answer.status_code == 201
    forks = [attached(server, told) for told in answer.json()["sessions"]]
    assert len({fork.id for fork in forks}) == 3
    for number, fork in enumerate(forks):
        assert fork.output("pwd; cat ../file; echo $STEP") == "/workspace/deep\nshared\n3\n"
        assert fork.told["metadata"] == {"kind": "origin"} and fork.told["user_id"] is None
        fork.output(f"echo {number} > ../file")
    assert [fork.output("cat ../file") for fork in (*forks, origin)] == ["0\n", "1\n", "2\n", "shared\n"]
    for fork in forks:
        fork.close()
    for wrong in ("count=0", "count=17", "count=x", "counts=1"):
        assert server.call("POST", f"/v1/sessions/{origin.id}/fork?{wrong}").status_code == 400
    key = {"Idempotency-Key": "one fork"[:3] + "-fork"}
    twice = [
        server.call("POST", f"/v1/sessions/{origin.id}/fork?count=2", headers=key).json() for _ in range(2)
    ]
    ids = [sorted(one["session_id"] for one in answer["sessions"]) for answer in twice]
    assert ids[0] == ids[1]
    for told in twice[0]["sessions"]:
        attached(server, told).close()
    assert server.call("GET", "/v1/snapshots").json()["snapshots"] == []


def test_a_repeated_fork_ends_nothing_that_an_earlier_one_has_made(server: Stack, opened: Open) -> None:
    """One of its sessions is over: the repetition says so, and leaves the other alone."""
    origin, key = opened(), {"Idempotency-Key": "again"}
    path = f"/v1/sessions/{origin.id}/fork?count=2"
    first, second = (
        attached(server, told) for told in server.call("POST", path, headers=key).json()["sessions"]
    )
    second.output("echo precious > file")
    first.close()
    problem(server.call("POST", path, headers=key), 410, "session_ended")
    assert second.output("cat file") == "precious\n"
    second.close()


def test_a_snapshot_is_taken_once_for_one_key(server: Stack, opened: Open) -> None:
    """However many ask at once: some may be told to ask again, none fails."""
    session, key = opened(), {"Idempotency-Key": "one"}
    path = f"/v1/sessions/{session.id}/snapshots"
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: server.call("POST", path, headers=key), range(8)))
    answers.append(server.call("POST", path, headers=key))
    assert {answer.status_code for answer in answers} <= {200, 201, 503} and answers[-1].status_code == 200
    assert len({answer.json()["snapshot_id"] for answer in answers if answer.status_code < 300}) == 1
    assert len(server.call("GET", path).json()["snapshots"]) == 1


def test_going_back_works_where_nothing_more_fits(server: Stack, opened: Open) -> None:
    """The tenant is at its limit: no snapshot, no fork, but undo."""
    session = opened(checkpoint=True, disk=60 * MIB)
    others = [opened(disk=60 * MIB) for _ in range(2)]
    for other in others:
        other.execute("head -c 100M /dev/urandom > big", timeout=60)
    session.output("echo kept > file")
    assert session.execute("head -c 100M /dev/urandom > big", timeout=60).json()["disk_full"]
    problem(post(session, "snapshots"), 409, "tenant_quota")
    problem(post(session, "fork"), 409, "tenant_quota")
    assert post(session, "undo").status_code == 200
    assert session.output("ls; cat file") == "file\nkept\n"
    for other in others:
        other.close()


def test_deleting_makes_room_in_a_session_with_checkpoints(opened: Open) -> None:
    session = opened(checkpoint=True, disk=40 * MIB)
    assert session.execute("head -c 100M /dev/urandom > big", timeout=60).json()["disk_full"]
    session.output("rm big")
    deadline = time.monotonic() + 20
    while session.execute("head -c 20M /dev/urandom > again").json()["exit_code"] != 0:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_executions_are_undone_one_after_the_other(server: Stack, opened: Open) -> None:
    """The last one, then the one before it; a named one takes what followed it along."""
    session = opened(checkpoint=True)
    ids = [session.execute(f"echo {n} >> log; mkdir d{n}; cd d{n}").json()["execution_id"] for n in range(4)]
    assert session.output("pwd") == "/workspace/d0/d1/d2/d3\n"
    told = post(session, "undo").json()
    assert told["undone"] not in ids and session.output("cat /workspace/log; pwd").endswith("/d3\n")
    first = post(session, "undo", execution_id=ids[3]).json()
    assert (first["undone"], first["session"]["session_id"]) == (ids[3], session.id)
    assert (
        server.call("GET", f"/v1/sessions/{session.id}/snapshots").json()["snapshots"][-1]["execution_id"]
        == ids[2]
    )
    post(session, "undo")
    assert session.output("pwd; ls /workspace; cat /workspace/log") == "/workspace/d0/d1\nd0\nlog\n0\n"
    problem(post(session, "undo", execution_id=ids[0]), 409, "nothing_to_undo")
    problem(post(opened(), "undo"), 409, "nothing_to_undo")


def test_checkpoints_are_bounded_and_end_with_their_session(server: Stack, opened: Open) -> None:
    session = opened(checkpoint=True)
    for n in range(5):
        session.output(f"echo {n} > file")
    kept = server.call("GET", f"/v1/sessions/{session.id}/snapshots").json()["snapshots"]
    assert [one["kind"] for one in kept] == ["checkpoint"] * 3
    key = {"Idempotency-Key": "once"}
    for _ in range(2):
        session.execute("echo again >> file", headers=key)
    post(session, "undo")
    assert session.output("cat file") == "4\n"
    session.close()
    assert server.call("GET", "/v1/snapshots").json()["snapshots"] == []
    eventually_no_volumes(server)


def test_what_never_ran_is_not_undone_in_place_of_what_did(server: Stack, opened: Open) -> None:
    """A refusal leaves no checkpoint, nor takes the place of one; nor does an answer that is told again."""
    session = opened(checkpoint=True)
    key = {"Idempotency-Key": "first"}
    first = session.execute("echo 0 > file", headers=key).json()["execution_id"]
    ids = [session.execute(f"echo {n} > file").json()["execution_id"] for n in (1, 2, 3)]
    for _ in range(4):
        assert session.execute("echo never > file", cwd="/nowhere").status_code == 400
    body = {"command": "echo never > file", "cwd": "/nowhere", "wait": 5}
    assert server.call("POST", f"/v1/sessions/{session.id}/executions", json=body).status_code == 400
    assert session.execute("echo 0 > file", headers=key).json()["execution_id"] == first
    kept = server.call("GET", f"/v1/sessions/{session.id}/snapshots").json()["snapshots"]
    assert [one["execution_id"] for one in kept] == ids
    assert post(session, "undo").json()["undone"] == ids[2]
    assert session.output("cat file") == "2\n"


def test_an_execution_without_a_checkpoint_is_not_taken_for_another(server: Stack, opened: Open) -> None:
    """The keeper is down for one command: it runs all the same, and undo says that it cannot undo it."""
    session = opened(checkpoint=True)
    session.output("echo one > file")
    server.kill("keeper")
    try:
        assert session.output("echo two > file; cat file") == "two\n"
    finally:
        server.start_keeper()
        server.wait_ready()
    wait_for_keeper(server)
    problem(post(session, "undo"), 409, "nothing_to_undo")
    assert session.output("cat file") == "two\n"


def test_another_tenants_snapshots_do_not_exist(server: Stack, opened: Open) -> None:
    taken = snapshot(opened())
    other = server.new_key("other")
    mine = server.call("POST", "/create_session", key=other).json()["session_id"]
    body = {"snapshot_id": taken}
    calls = [
        server.call("GET", f"/v1/snapshots/{taken}", key=other),
        server.call("DELETE", f"/v1/snapshots/{taken}", key=other),
        server.call("POST", "/create_session", key=other, json={"snapshot": taken}),
        server.call("POST", f"/v1/sessions/{mine}/restore", key=other, json=body),
    ]
    for answer in calls:
        problem(answer, 404, "snapshot_not_found")
    assert server.call("GET", "/v1/snapshots", key=other).json() == {"snapshots": []}
    server.call("DELETE", f"/v1/sessions/{mine}", key=other)


def test_copies_count_against_the_tenants_quota(server: Stack, opened: Open) -> None:
    """A26: a chain of forks cannot hold more than the tenant may, although each is within its own limit."""
    chain = [opened()]
    for _ in range(6):
        chain[-1].execute("head -c 55000000 /dev/urandom > $RANDOM; sync", timeout=60)
        answer = server.call("POST", f"/v1/sessions/{chain[-1].id}/fork")
        if answer.status_code != 201:
            break
        chain[-1].close()
        chain.append(attached(server, answer.json()["sessions"][0]))
    told = problem(answer, 409, "tenant_quota")
    assert told["used"] >= told["allowed"] - MIB
    assert len(chain) <= 5
    chain[-1].output("rm -f *")
    chain[-1].close()
    deadline = time.monotonic() + 30
    while not holds(server, 60_000_000):
        assert time.monotonic() < deadline, "what nobody holds any more is not given back"
        time.sleep(0.5)


def test_a_keeper_that_dies_in_the_middle_leaves_nothing_behind(server: Stack, opened: Open) -> None:
    """Snapshots, forks and restores while it is killed and started again: sessions live, nothing is left."""
    session = opened()
    session.output("echo acknowledged > file")
    taken = snapshot(session)
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            post(session, "snapshots")
            post(session, "restore", snapshot_id=taken)
            for told in post(session, "fork?count=2").json().get("sessions", ()):
                attached(server, told).close()
            for one in server.call("GET", "/v1/snapshots").json()["snapshots"]:
                if one["snapshot_id"] != taken:
                    server.call("DELETE", f"/v1/snapshots/{one['snapshot_id']}")

    worker = threading.Thread(target=churn)
    worker.start()
    for _ in range(5):
        time.sleep(0.6)
        server.kill("keeper")
        server.start_keeper()
        wait_for_keeper(server)
    stop.set()
    worker.join(timeout=60)
    assert session.output("cat /workspace/file") == "acknowledged\n"
    for told in server.call("GET", "/v1/sessions").json()["sessions"]:
        if told["session_id"] != session.id:
            attached(server, told).close()
    for one in server.call("GET", "/v1/snapshots").json()["snapshots"]:
        server.call("DELETE", f"/v1/snapshots/{one['snapshot_id']}")
    session.close()
    server.kill("keeper", 15)
    server.start_keeper()
    wait_for_keeper(server)
    eventually_no_volumes(server)
    assert server.call("GET", "/v1/snapshots").json()["snapshots"] == []


def holds(stack: Stack, size: int) -> bool:
    """Whether a new session can be opened and filled so far."""
    answer = stack.call("POST", "/create_session")
    if answer.status_code != 200:
        problem(answer, 409, "tenant_quota")
        return False
    session = attached(stack, answer.json())
    filled = session.execute(f"head -c {size} /dev/zero > x").json()["exit_code"] == 0
    session.close()
    return filled


def wait_for_keeper(stack: Stack) -> None:
    deadline = time.monotonic() + 60
    while stack.call("GET", "/v1/datasets").status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def eventually_no_volumes(stack: Stack) -> None:
    """Those of the self-check and of failed openings go by themselves."""
    deadline = time.monotonic() + 70
    while stack.volumes():
        assert time.monotonic() < deadline, stack.volumes()
        time.sleep(0.1)
