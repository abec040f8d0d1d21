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
    assert all(figures["p50"] > 0 for figures in found["warm"].values())
    assert text.count("  met\n") + text.count("  MISSED\n") == len(found["targets"]) == 4
    assert all(len(ways) == 5 for ways in found["starts"].values()) and "guest answers" in text
    assert len(found["waking"]) == 6 and all(one["p50"] > 0 for one in found["waking"].values())


def test_soak_weighs_the_server_and_judges(tmp_path: Path) -> None:
    """Nothing has grown beyond what is stated, not even after a few."""
    text, found = run("soak.py", tmp_path)
    growths = [one["growth"] for name, one in found.items() if name != "machine"]
    assert len(growths) == 2 and all(held for growth in growths for *_, held in growth.values()), text


def test_files_compares_and_judges(tmp_path: Path) -> None:
    text, found = run("files.py", tmp_path)
    assert all(figure > 0 for figures in found["rates"].values() for figure in figures.values())
    assert text.count("  met\n") + text.count("  MISSED\n") == len(found["targets"]) == 3


def test_snapshots_compares_with_docker_commit(tmp_path: Path) -> None:
    text, found = run("snapshots.py", tmp_path)
    assert len(found["figures"]) == 5 and all(one["p50"] > 0 for one in found["figures"].values())
    assert text.count("  met\n") + text.count("  MISSED\n") == len(found["targets"]) == 3


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


def test_density_fills_the_machine_with_each_kind_of_idle_session(tmp_path: Path) -> None:
    text, found = run("density.py", tmp_path)
    assert [(one["kind"], one["sessions"]) for one in found["stages"]] == [
        (kind, count) for kind in ("hot", "paused", "cold") for count in (1, 2)
    ]
    assert all(f"{kind}: no bound was met" in text for kind in ("hot", "paused", "cold"))
