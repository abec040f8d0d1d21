"""The same server on crun and on gVisor: real programs, known to an engine of the tests' own.

gVisor is registered under a name that does not give it away.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import oci_programs
import pytest
from expect import ended, eventually, problem
from own_engine import OwnEngine, own_engine
from plain import Session, open_in
from stack import IMAGE_TAG, Stack, docker, running

pytestmark = [pytest.mark.alone, pytest.mark.timeout(240)]  # it strains the machine to see what holds

GVISOR = "strong-wall"
HOG = "held = []\nwhile True: held.append(b'x' * (1 << 20))"
FORKS = "import os\nfor _ in range(200):\n    if os.fork() == 0: os.read(os.pipe()[0], 1)"
CONNECT = "import socket; socket.create_connection(('192.0.2.1', 80), 2)"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("oci")


@pytest.fixture(scope="module")
def engine(programs: Path) -> Iterator[OwnEngine]:
    known = {"crun": oci_programs.crun(programs), GVISOR: oci_programs.runsc(programs)}
    with own_engine(f"sandbox-server/default:{IMAGE_TAG}", known) as one:
        yield one


@contextmanager
def server(engine: OwnEngine, oci_runtime: str = "", **settings: str) -> Iterator[Stack]:
    with running(SANDBOX_DOCKER_HOST=engine.host, SANDBOX_OCI_RUNTIME=oci_runtime, **settings) as stack:
        yield stack


@pytest.fixture(scope="module", params=["", GVISOR], ids=["crun", "runsc"])
def on(request: pytest.FixtureRequest, engine: OwnEngine) -> Iterator[Stack]:
    """With nothing set crun is taken, as the engine knows it and it works."""
    with server(engine, request.param, SANDBOX_POOL_MIN="1", SANDBOX_POOL_MAX="1") as stack:
        yield stack


@pytest.fixture
def session(on: Stack) -> Iterator[Session]:
    one = open_in(on, memory=256 << 20)  # no size of the pool's
    yield one
    one.close()


def is_gvisor(stack: Stack) -> bool:
    return stack.env["SANDBOX_OCI_RUNTIME"] == GVISOR


def runtime_of(engine: OwnEngine, session: Session) -> str:
    told = docker("-H", engine.host, "inspect", "-f", "{{.HostConfig.Runtime}}", session.container)
    return told.strip()


def findings(stack: Stack) -> dict[str, dict[str, Any]]:
    report = stack.call("GET", "/v1/admin/doctor", key=stack.admin_key).json()
    return {finding["id"]: finding for finding in report["findings"]}


def test_sandboxes_are_made_with_it_and_the_wall_is_whole(
    engine: OwnEngine, on: Stack, session: Session
) -> None:
    """From inside, with limits really tried; and the doctor knows what it is whatever its name."""
    assert on.call("GET", "/readyz").json()["status"] == "ready"
    assert runtime_of(engine, session) == (GVISOR if is_gvisor(on) else "crun")
    found = findings(on)
    assert not [id for id, one in found.items() if one["severity"] in ("critical", "major")]
    assert (found["oci.kernel"]["severity"] == "ok") == is_gvisor(on)
    assert found["oci.version"]["severity"] in ("ok", "note")
    assert "gVisor" in session.output("dmesg 2>&1 || uname -v") or not is_gvisor(on)


def test_commands_and_files(on: Stack, session: Session) -> None:
    """Many commands one after the other: each gets its own output."""
    at = f"/v1/sessions/{session.id}/files/content?path=made.txt"
    for number in range(5):
        assert session.output(f"echo {number}; (echo {number} | cat) >&2") == f"{number}\n{number}\n"
    assert session.output("cd /tmp; id -un") == "user\n" and session.output("pwd") == "/tmp\n"
    assert session.execute("6 * 7", language="python").json()["value"] == "42"
    assert on.call("PUT", at, data=b"from outside").ok
    assert (
        session.output("cd; cat made.txt; echo more >>made.txt; stat -c %U made.txt") == "from outsideuser\n"
    )
    assert on.call("GET", at).content == b"from outsidemore\n"
    assert session.output("nproc; awk '/MemTotal/ {print $2}' /proc/meminfo") == f"1\n{256 << 10}\n"


def test_a_command_that_takes_too_long_ends_and_the_shell_stays(session: Session) -> None:
    session.output("kept=yes")
    answer = session.execute("sleep 60 | cat", timeout=1).json()
    assert answer["timed_out"] and session.output("echo $kept") == "yes\n"


def test_processes_disk_and_network_are_limited(on: Stack) -> None:
    session = open_in(on, disk=32 << 20)
    assert session.execute(["python3", "-c", CONNECT], shell=None).json()["exit_code"] == 1
    full = session.execute("head -c 64M /dev/zero >big").json()
    assert full["exit_code"] != 0 and "quota" in full["stderr"]
    forked = session.execute(["python3", "-c", FORKS], shell=None, timeout=20).json()
    assert forked["exit_code"] == 1 and "BlockingIOError" in forked["stderr"], forked
    assert session.output("echo alive") == "alive\n"
    session.close()


def test_a_hog_does_not_get_more_memory_than_its_session_has(on: Stack) -> None:
    """gVisor's kernel refuses the program; should the host's kill all of it, the session ends by that."""
    session = open_in(on, memory=128 << 20)
    hog = session.execute(["python3", "-c", HOG], shell=None, timeout=30)
    if hog.status_code == 200:
        refused = hog.json()["exit_code"] == 1  # there may be no memory left to say why
        assert refused if is_gvisor(on) else hog.json()["oom_killed"], hog.json()
        assert session.output("echo alive") == "alive\n"
    else:
        assert is_gvisor(on)
        ended(session.get(), "oom")
    session.close()


def test_asleep_cold_back_and_gone(on: Stack, session: Session) -> None:
    at = f"/v1/sessions/{session.id}"
    session.output("export kept=yes; echo first >file; cd /tmp")
    snapshot = on.call("POST", f"{at}/snapshots", json={}).json()["snapshot_id"]
    assert on.call("POST", f"{at}/pause", json={}).json()["state"] == "paused"
    assert session.output("echo $kept") == "yes\n"
    assert on.call("POST", f"{at}/pause", json={"cold": True}).json()["state"] == "cold"
    assert session.output("echo $kept $PWD; cat ~/file; echo second >~/file") == "yes /tmp\nfirst\n"
    assert on.call("POST", f"{at}/restore", json={"snapshot_id": snapshot}).ok
    assert session.output("cat ~/file") == "first\n"
    assert on.call("DELETE", f"/v1/snapshots/{snapshot}").ok
    container = session.container
    session.close()
    eventually(lambda: container not in names(on))
    problem(session.get(), 410, "session_ended")
    on.wait_without_leaks()


def test_a_paused_sandbox_is_closed_at_once(on: Stack, session: Session) -> None:
    on.call("POST", f"/v1/sessions/{session.id}/pause", json={})
    container = session.container
    session.close()
    eventually(lambda: container not in names(on), seconds=8)


def test_the_pool_is_used_where_files_can_be_mounted_into_a_running_sandbox(on: Stack) -> None:
    """gVisor does not let them through: there nothing waits in vain, and sessions are opened cold."""
    if not is_gvisor(on):
        eventually(lambda: len(names(on)) == 1)
        (warm,) = names(on)
    session = open_in(on)
    session.output("echo mine >file")
    if is_gvisor(on):
        assert names(on) == [session.container]
    else:
        assert session.container == warm
    session.close()


def names(stack: Stack) -> list[str]:
    ours = f"label=sandbox-server.instance={stack.instance}"
    host = stack.env["SANDBOX_DOCKER_HOST"]
    return docker("-H", host, "ps", "-a", "--format", "{{.Names}}", "--filter", ours).split()


def test_where_crun_refuses_the_default_is_used_unless_crun_was_asked_for(
    engine: OwnEngine, programs: Path
) -> None:
    """The log and the doctor say why. What an operator names is obeyed, and fails loudly."""
    engine.stop()
    engine.runtimes = {"crun": oci_programs.refusing(programs)}
    engine.start(live_restore=True)
    with server(engine) as stack:
        session = open_in(stack)
        assert session.output("echo works") == "works\n"
        assert runtime_of(engine, session) == "runc"
        assert stack.call("GET", "/readyz").json()["status"] == "ready"
        assert "crun was tried" in findings(stack)["oci.choice"]["found"]
        logged = [json.loads(line) for line in stack.log("keeper").splitlines()]
        assert any(line["message"].startswith("crun is not used:") for line in logged)
        stack.close_sessions()
        stack.kill("keeper", signal.SIGTERM)
        stack.env["SANDBOX_OCI_RUNTIME"] = "crun"
        stack.start_keeper()
        eventually(lambda: stack.call("GET", "/readyz").json()["checks"]["sandbox"] != "ok")
        assert stack.call("GET", "/readyz").status_code == 503
        problem(stack.call("POST", "/create_session", json={}), 503, "engine_unavailable")
