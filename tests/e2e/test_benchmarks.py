"""The benchmarks, started as a person starts them. Their figures are not judged here."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stack import ROOT, docker

pytestmark = pytest.mark.timeout(300)


def command(name: str, *options: str) -> list[str]:
    return [sys.executable, str(ROOT / "benchmarks" / name), *options]


def run(name: str, place: Path) -> tuple[str, dict[str, Any]]:
    report = place / "report.json"
    done = subprocess.run(
        command(name, "--quick", "--json", str(report)), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(report.read_text())


def test_exec_compares_and_judges(tmp_path: Path) -> None:
    """Every contender has a row, no request failed, and every target is met or missed."""
    text, found = run("exec.py", tmp_path)
    assert {"machine", "latency", "throughput", "targets"} <= found.keys()
    assert len(found["latency"]) == 7
    assert all(name in text for name in found["latency"])
    assert sum(one["failed"] for one in found["throughput"]) == 0
    assert text.count("  met\n") + text.count("  MISSED\n") == len(found["targets"]) == 3


def test_lifecycle_tells_time_and_memory(tmp_path: Path) -> None:
    text, found = run("lifecycle.py", tmp_path)
    assert "docker:" in text and "Memory per idle session" in text
    assert all(cost["opened"]["p50"] > 0 and cost["closed"]["p50"] > 0 for cost in found["cycles"].values())
    assert [held["sessions"] for held in found["memory"]] == [1, 2]


def test_a_stopped_benchmark_leaves_nothing_behind() -> None:
    """Ctrl-C in the middle: its servers, containers and directories are gone when it is."""
    child = subprocess.Popen(
        command("exec.py", "--quick"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stderr is not None
        state = Path(next(line for line in child.stderr if "our server lives in" in line).split()[-1])
        next(line for line in child.stderr if line.startswith("latency"))
        instance = (state / "state" / "instance").read_text().split()[0]
        child.send_signal(signal.SIGINT)
        words = child.communicate(timeout=120)[1]
    finally:
        child.kill()
    assert child.returncode == 1 and "everything was removed" in words
    assert not state.exists()
    for label in (f"sandbox-server.benchmark={child.pid}", f"sandbox-server.instance={instance}"):
        assert docker("ps", "-aq", "--filter", f"label={label}") == ""
