"""The doctor on a real server: what it finds when all is well, and when something real is spoilt."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
from stack import Stack, running

from tests.expect import problem

PATIENCE = 60.0
PARTS = {
    "engine",
    "host",
    "leftovers",
    "oci",
    "clock",
    "sysctl",
    "kernel",
    "storage",
    "disk",
    "state",
    "web",
    "proxy",
    "wall",
    "limits",
}


def doctor(stack: Stack, *args: str) -> subprocess.CompletedProcess[str]:
    command = [stack.python, "-m", "server.ctl", "doctor", *args]
    return subprocess.run(
        command, env=stack.env, cwd=stack.root, capture_output=True, text=True, timeout=120, check=False
    )


def told(stack: Stack) -> dict[str, Any]:
    done = doctor(stack, "--json")
    report: dict[str, Any] = json.loads(done.stdout)
    codes = {"A": 0, "B": 0, "C": 3, "D": 4, "F": 5}
    assert done.returncode == codes[report["grade"]], done.stderr
    return report


def severities(report: dict[str, Any]) -> dict[str, str]:
    return {finding["id"]: finding["severity"] for finding in report["findings"]}


def until(stack: Stack, check: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The keeper repeats itself for a moment."""
    deadline = time.monotonic() + PATIENCE
    while not check(report := told(stack)):
        assert time.monotonic() < deadline, report
        time.sleep(0.5)
    return report


def test_a_server_that_is_well_gets_a_good_grade(stack: Stack) -> None:
    """Every part was looked at, and limits were really tried in a sandbox."""
    report = told(stack)
    found = severities(report)
    assert report["grade"] in ("A", "B"), report
    assert {id.partition(".")[0] for id in found} == PARTS
    assert found["limits.memory_beyond_the_limit"] == found["limits.processes_beyond_the_limit"] == "ok"
    assert found["limits.cpu_beyond_the_quota"] == found["limits.a_connection_outwards"] == "ok"
    assert found["wall.disk_limit"] == found["storage.hard"] == found["web.engine"] == "ok"
    for finding in report["findings"]:
        assert finding["found"] and finding["wanted"], finding
        assert (finding["advice"] == "") == (finding["severity"] == "ok"), finding


def test_a_person_reads_what_to_do_first(stack: Stack) -> None:
    done = doctor(stack)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith(("Grade A", "Grade B"))
    assert "ok       engine.answers: it answers" in done.stdout


def test_the_report_has_no_secret(stack: Stack) -> None:
    secret = (stack.dir / "state" / "instance").read_text().split()[1]
    said = doctor(stack, "--json").stdout + doctor(stack).stdout
    assert secret not in said and stack.key not in said


def test_the_operator_gets_the_same_over_http_and_nobody_else_does(stack: Stack) -> None:
    operator = json.loads(stack.ctl("key", "new", "--admin", "--json"))["key"]
    answer = stack.call("GET", "/v1/admin/doctor", key=operator)
    assert answer.status_code == 200, answer.text
    assert severities(answer.json()) == severities(told(stack))
    problem(stack.call("GET", "/v1/admin/doctor"), 403, "scope_missing")


@pytest.mark.parametrize("path", ["instance", "store/store.db"])
def test_a_secret_that_others_may_read_is_critical(stack: Stack, path: str) -> None:
    """The grade falls to F, the advice puts it right, and the grade is good again."""
    spoilt = stack.dir / "state" / path
    mode = spoilt.stat().st_mode
    spoilt.chmod(0o644)
    id = f"state.{path.replace('/', '.')}"
    try:
        report = until(stack, lambda report: severities(report)[id] == "critical")
        assert report["grade"] == "F" and report["findings"][0]["id"] == id
        subprocess.run(report["findings"][0]["advice"], shell=True, check=True, timeout=10)
        assert until(stack, lambda report: severities(report)[id] == "ok")["grade"] in ("A", "B")
    finally:
        spoilt.chmod(mode)


def test_soft_storage_lowers_the_grade_and_a_keeper_that_is_down_fails() -> None:
    """On one server: without btrfs limits are soft; without a keeper the rest is examined all the same."""
    with running(SANDBOX_STORAGE="directory") as stack:
        report = told(stack)
        assert (report["grade"], severities(report)["storage.hard"]) == ("C", "major")
        assert "SANDBOX_STORAGE" in next(f["found"] for f in report["findings"] if f["id"] == "storage.hard")
        stack.kill("keeper")
        down = told(stack)
        assert (down["grade"], down["findings"][0]["id"]) == ("F", "keeper.answers")
        assert severities(down)["engine.answers"] == severities(down)["state.instance"] == "ok"
        stack.start_keeper()
        stack.wait_ready()
