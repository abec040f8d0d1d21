"""What one session uses, told to its tenant: as the host sees it, whatever the sandbox says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from expect import problem, refused
from plain import Open, Session, opening
from sandbox_client import SandboxClient
from stack import ROOT, Stack, running

MIB = 1 << 20


@pytest.fixture(scope="module")
def sampled() -> Iterator[Stack]:
    with running(SANDBOX_SAMPLE_INTERVAL="1") as stack:
        yield stack


@pytest.fixture
def opened(sampled: Stack) -> Iterator[Open]:
    with opening(sampled) as open_one:
        yield open_one


def metrics(session: Session, query: str = "") -> dict[str, Any]:
    answer = session.stack.call("GET", f"/v1/sessions/{session.id}/metrics{query}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def until(true: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.2)
    return found


def test_a_busy_loop_shows_about_one_cpu(opened: Open) -> None:
    """Two of them, in a session that has one: on a busy host it may get less, and never more."""
    session = opened(cpus=1)
    for _ in range(2):
        session.execute("while :; do :; done", background=True, shell=None, timeout=120)
    busy = until(lambda: [one for one in metrics(session)["samples"] if (one["cpus"] or 0) > 0.3])
    assert all(one["cpus"] < 1.3 for one in busy)
    later = until(lambda: [one for one in metrics(session)["samples"] if one["at"] > busy[0]["at"]])
    assert later[-1]["cpu_seconds"] > busy[0]["cpu_seconds"]


def test_memory_shows_and_its_peak_stays(opened: Open) -> None:
    session = opened()
    before = metrics(session)["now"]["memory"]
    session.output("x = b'1' * (100 << 20)", language="python")
    assert metrics(session)["now"]["memory"] > before + 90 * MIB
    session.output("del x", language="python")
    told = metrics(session)
    assert told["now"]["memory"] < before + 90 * MIB
    assert told["now"]["memory_peak"] > before + 90 * MIB
    assert told["memory_limit"] == session.told["memory"]


def test_processes_and_files_show(opened: Open) -> None:
    session = opened()
    before = metrics(session)["now"]
    session.output("head -c 20M /dev/urandom > file; sync; for i in 1 2 3 4 5; do sleep 300 & done")
    now = metrics(session)["now"]
    assert now["processes"] >= before["processes"] + 5
    assert until(lambda: metrics(session)["now"]["disk_used"] >= before["disk_used"] + 20 * MIB)


def test_samples_come_by_themselves_oldest_first_and_only_as_many_as_asked_for(opened: Open) -> None:
    session = opened()
    until(lambda: len(metrics(session)["samples"]) >= 3)
    told = metrics(session)
    times = [one["at"] for one in told["samples"]]
    assert times == sorted(times) and told["interval"] == 1.0
    assert metrics(session, "?seconds=0")["samples"] == []
    refused(session.stack.call("GET", f"/v1/sessions/{session.id}/metrics?seconds=1e9"), "seconds")
    refused(session.stack.call("GET", f"/v1/sessions/{session.id}/metrics?evil=1"), "evil")


def test_asking_does_not_keep_a_session_alive(opened: Open) -> None:
    session = opened()
    before = session.get().json()["expires_at"]
    time.sleep(1.1)
    metrics(session)
    assert session.get().json()["expires_at"] == before


def test_asking_does_not_wake_a_session_that_sleeps(opened: Open) -> None:
    session = opened()
    session.stack.call("POST", f"/v1/sessions/{session.id}/pause", json={})
    used = metrics(session)["now"]["cpu_seconds"]
    later = until(lambda: [one for one in metrics(session)["samples"] if one["cpu_seconds"] == used])
    assert later[-1]["memory"] > 0 and session.get().json()["state"] == "paused"
    session.stack.call("POST", f"/v1/sessions/{session.id}/pause", json={"cold": True})
    assert metrics(session)["now"]["memory"] is None and session.get().json()["state"] == "cold"


def test_another_tenants_session_is_not_there(sampled: Stack, opened: Open) -> None:
    session, other = opened(), sampled.new_key("other")
    answer = sampled.call("GET", f"/v1/sessions/{session.id}/metrics", key=other)
    problem(answer, 404, "session_not_found")
    unknown = sampled.call("GET", f"/v1/sessions/{'0' * 32}/metrics", key=other)
    assert problem(unknown, 404, "session_not_found")["detail"] == answer.json()["detail"]


def test_a_session_that_ended_says_so(opened: Open) -> None:
    session = opened()
    session.close()
    answer = session.stack.call("GET", f"/v1/sessions/{session.id}/metrics")
    problem(answer, 410, "session_ended")


def test_the_client_and_the_program_show_the_same(sampled: Stack) -> None:
    with sampled.client() as sandbox:
        told = until(lambda: (found := sandbox.metrics()).samples and found)
        assert told.now.memory > MIB and told.now.at > told.samples[0].at
        assert told.memory_limit == sandbox.info().memory
        assert sandbox.metrics(seconds=0).samples == ()
        (line,) = [line for line in program(sampled, "top").splitlines() if sandbox.session_id in line]
        assert line.split()[2] == "1" and line.split()[4] == "512M"
        assert program(sampled, "top", sandbox.session_id).startswith("AGO")
        (one,) = json.loads(program(sampled, "top", "--json", sandbox.session_id))
        assert one["now"]["memory"] > MIB


def program(stack: Stack, *args: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "client"), "SANDBOX_URL": stack.url}
    command = [sys.executable, "-m", "sandbox_client.cli", *args]
    env["SANDBOX_API_KEY"] = stack.key
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_a_keeper_the_problem_is_typed_and_samples_come_again(sampled: Stack) -> None:
    with SandboxClient(url=sampled.url, api_key=sampled.key) as sandbox:
        path = f"/v1/sessions/{sandbox.session_id}/metrics"
        sampled.kill("keeper")
        problem(sampled.call("GET", path), 503, "keeper_unavailable")
        sampled.start_keeper()
        until(lambda: sampled.call("GET", path).status_code == 200)
        until(lambda: sampled.call("GET", path).json()["samples"])
