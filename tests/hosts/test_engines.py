"""A session's whole life on each Docker Engine: the machine's own, and those of Debian's next releases.

What each step does in detail is told by tests/engine; `./quickstart.sh test --engine NAME` runs all of them
on one of these engines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
from expect import eventually, problem
from own_engine import OwnEngine
from stack import Stack, docker, running

from tests.engine.plain import Session, open_in
from tests.hosts.engines import RELEASES, engine_of
from tests.hosts.record import Facts, observe, record, run_here

pytestmark = pytest.mark.timeout(300)
MIB = 1 << 20


@dataclass(frozen=True)
class Lane:
    """A server, and the arguments with which docker speaks to its engine."""

    stack: Stack
    engine: list[str]

    def docker(self, *words: str) -> str:
        return docker(*self.engine, *words).strip()


@pytest.fixture(scope="module", params=["machine", *RELEASES])
def lane(request: pytest.FixtureRequest) -> Iterator[Lane]:
    engine: Any = nullcontext() if request.param == "machine" else engine_of(request.param)
    with engine as own:
        host = own.host if isinstance(own, OwnEngine) else ""
        settings = {"SANDBOX_DOCKER_HOST": host} if host else {}
        with running(SANDBOX_POOL_MIN="1", SANDBOX_POOL_MAX="1", **settings) as stack:
            failed_before = request.session.testsfailed
            yield Lane(stack, ["-H", host] if host else [])
            if request.session.testsfailed == failed_before:
                record(f"engine of {request.param}", facts_of(stack, host))


def facts_of(stack: Stack, host: str) -> Facts:
    """With the OCI runtime that the server has chosen."""
    to_engine = f"export DOCKER_HOST={host}\n" if host else ""
    report = stack.call("GET", "/v1/admin/doctor", key=stack.admin_key).json()
    used = next(one["found"] for one in report["findings"] if one["id"] == "oci.version").partition(";")[0]
    return replace(observe(lambda script: run_here(to_engine + script)), oci_runtime=used)


@pytest.fixture
def session(lane: Lane) -> Iterator[Session]:
    one = open_in(lane.stack, memory=192 * MIB, disk=32 * MIB)  # no size of the pool's
    yield one
    one.close()


def test_a_session_is_opened_from_the_pool(lane: Lane) -> None:
    ours = f"label=sandbox-server.instance={lane.stack.instance}"
    eventually(lambda: len(lane.docker("ps", "-q", "--filter", ours).split()) == 1)
    warm = lane.docker("ps", "--format", "{{.Names}}", "--filter", ours)
    session = open_in(lane.stack)
    assert session.output("echo works") == "works\n"
    assert session.container == warm
    session.close()


def test_the_wall_is_whole(lane: Lane) -> None:
    """Seen from inside, and by a program that takes more than it may."""
    eventually(lambda: lane.stack.call("GET", "/readyz").status_code == 200)  # of each worker
    ready = lane.stack.call("GET", "/readyz").json()
    assert (ready["status"], ready["wall"], ready["storage"]) == ("ready", {}, None)
    report = lane.stack.call("GET", "/v1/admin/doctor", key=lane.stack.admin_key).json()
    assert not [
        one for one in report["findings"] if one["id"].startswith("wall.") and one["severity"] != "ok"
    ]
    assert [one["severity"] for one in report["findings"] if one["id"].startswith("limits.")] == ["ok"] * 4


def test_commands_keep_their_state_and_streams_arrive(session: Session) -> None:
    session.output("cd /tmp; export kept=yes")
    assert session.output("echo $kept in $PWD") == "yes in /tmp\n"
    streamed = session.execute("echo one; echo two >&2", stream=True)
    assert streamed.ok and "one" in streamed.text and '"stderr"' in streamed.text


def test_names_of_this_machine_are_known_and_no_others(session: Session) -> None:
    """Engines differ in which files they write for a container without network."""
    assert session.output("hostname; cat /etc/hostname") == "sandbox\nsandbox\n"
    serve = "(cd /tmp && python3 -m http.server 8000 >/dev/null 2>&1 &); sleep 1; "
    assert session.output(f"{serve}curl -sS -o /dev/null -w '%{{http_code}}' http://localhost:8000/") == "200"
    assert session.execute("getent hosts example.org").json()["exit_code"] == 2


def test_a_timeout_ends_the_command_and_keeps_the_shell(session: Session) -> None:
    session.output("kept=yes")
    assert session.execute("sleep 60 | cat", timeout=1).json()["timed_out"]
    assert session.output("echo $kept") == "yes\n"


def test_out_of_memory_is_told_and_the_shell_stays(session: Session) -> None:
    session.output("kept=yes")
    told = session.execute("python3 -c 'b = bytearray(400 << 20)'", timeout=60).json()
    assert told["oom_killed"] and told["exit_code"] == 137
    assert session.output("echo $kept") == "yes\n"


def test_a_full_disk_is_told(session: Session) -> None:
    told = session.execute("head -c 64M /dev/zero >big", timeout=60).json()
    assert told["disk_full"] and "quota" in told["stderr"].lower()
    assert session.output("rm big; echo small >file; cat file") == "small\n"


def test_paused_and_cold_sessions_wake_as_they_were(lane: Lane, session: Session) -> None:
    at = f"/v1/sessions/{session.id}"
    session.output("export kept=yes; echo first >file; cd /tmp")
    assert lane.stack.call("POST", f"{at}/pause", json={}).json()["state"] == "paused"
    assert lane.docker("inspect", "-f", "{{.State.Paused}}", session.container) == "true"
    assert session.output("echo $kept") == "yes\n"
    assert lane.stack.call("POST", f"{at}/pause", json={"cold": True}).json()["state"] == "cold"
    assert session.output("echo $kept $PWD; cat ~/file") == "yes /tmp\nfirst\n"


def test_snapshots_bring_files_back_and_forks_have_their_own(lane: Lane, session: Session) -> None:
    at = f"/v1/sessions/{session.id}"
    session.output("echo precious >file")
    snapshot = lane.stack.call("POST", f"{at}/snapshots", json={}).json()["snapshot_id"]
    session.output("rm file")
    assert lane.stack.call("POST", f"{at}/restore", json={"snapshot_id": snapshot}).ok
    assert session.output("cat file") == "precious\n"
    forked = lane.stack.call("POST", f"{at}/fork", json={})
    assert forked.status_code == 201, forked.text
    fork = Session(lane.stack, forked.json()["sessions"][0]["session_id"], {})
    assert fork.output("cat file; echo mine >file") == "precious\n"
    assert session.output("cat file") == "precious\n"
    fork.close()
    assert lane.stack.call("DELETE", f"/v1/snapshots/{snapshot}").ok


def test_a_quota_holds(lane: Lane) -> None:
    lane.stack.ctl("tenant", "add", "small", "--limit", "sessions=1")
    key = lane.stack.new_key("small")
    first = lane.stack.call("POST", "/create_session", key, json={})
    assert first.ok
    problem(lane.stack.call("POST", "/create_session", key, json={}), 429, "too_many_sessions")
    assert lane.stack.call("DELETE", f"/v1/sessions/{first.json()['session_id']}", key).ok


def test_what_a_session_uses_is_measured(lane: Lane, session: Session) -> None:
    """Its own control groups are found wherever this engine has put them."""
    session.output("python3 -c 'b = bytearray(40 << 20); sum(range(4 * 10**7))'", timeout=60)
    told = lane.stack.call("GET", f"/v1/sessions/{session.id}/metrics").json()
    assert told["now"]["cpu_seconds"] > 0.2
    assert told["now"]["memory_peak"] > 40 * MIB
    assert told["now"]["processes"] >= 2


def test_nothing_is_left_behind(lane: Lane) -> None:
    lane.stack.close_sessions()
    lane.stack.wait_without_leaks()
