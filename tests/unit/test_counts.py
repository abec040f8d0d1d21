"""Numbers that only grow: added up over processes, whatever becomes of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from server.counts import Counts
from server.meters import Meters

PLACES = 4
# A process that counts three requests, says so, and waits to be killed.
WORKER = """
import sys, time
from pathlib import Path
from server.counts import Counts
from server.meters import Meters
meters = Meters(Counts(Path(sys.argv[1]), int(sys.argv[2])))
for _ in range(3):
    meters.answered("/execute", "POST", 200)
print("counted", flush=True)
time.sleep(60)
"""

Start = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    def begin() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WORKER, str(tmp_path / "metrics"), str(PLACES)]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        assert process.stdout is not None and process.stdout.readline() == "counted\n"
        return process

    return begin


@pytest.fixture
def counts(tmp_path: Path) -> Iterator[Counts]:
    with contextlib.closing(Counts(tmp_path / "metrics", PLACES)) as opened:
        yield opened


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)


def values(counts: Counts) -> dict[str, float]:
    """Samples by name and labels, as Prometheus would read them."""
    text = generate_latest(counts).decode()  # type: ignore[arg-type] # all that is needed of a registry
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def requests_in(directory: Path) -> float:
    with contextlib.closing(Counts(directory, PLACES)) as counts:
        found = values(counts)
    return found["sandbox_http_requests_total{method=POST,route=/execute,status=200}"]


def test_what_several_processes_count_is_added_up(start: Start, tmp_path: Path) -> None:
    workers = [start(), start()]
    assert requests_in(tmp_path / "metrics") == 6
    for worker in workers:
        end(worker)


def test_a_killed_process_takes_nothing_with_it_and_its_place_is_used_again(
    start: Start, tmp_path: Path
) -> None:
    """Ten of them, one after the other: all is counted, in the files of one place."""
    for number in range(1, 11):
        end(start())
        assert requests_in(tmp_path / "metrics") == 3 * number
    assert len(list((tmp_path / "metrics").glob("*.db"))) == 2


def test_more_processes_than_places_count_for_themselves_and_harm_nobody(
    start: Start, tmp_path: Path
) -> None:
    workers = [start() for _ in range(PLACES + 2)]
    assert requests_in(tmp_path / "metrics") == 3 * PLACES
    for worker in workers:
        end(worker)


def test_a_torn_file_is_begun_anew_and_the_others_count_on(start: Start, tmp_path: Path) -> None:
    workers = [start(), start()]
    for worker in workers:
        end(worker)
    with (tmp_path / "metrics" / "counter_1.db").open("r+b") as torn:
        torn.seek(8)
        torn.write(os.urandom(4096))
    assert requests_in(tmp_path / "metrics") == 3


def test_where_no_file_can_be_made_counting_still_works(tmp_path: Path) -> None:
    (tmp_path / "metrics").write_text("in the way")
    with contextlib.closing(Counts(tmp_path / "metrics", PLACES)) as alone:
        Meters(alone).answered("/execute", "POST", 200)


def test_a_distribution_tells_how_many_lay_below_each_bound(counts: Counts) -> None:
    seconds = counts.distribution("seconds", "What it took.", (0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 70.0):
        seconds.note(value)
    found = values(counts)
    assert [found[f"seconds_bucket{{le={top}}}"] for top in ("0.1", "1.0", "+Inf")] == [2, 3, 4]
    assert (found["seconds_count"], found["seconds_sum"]) == (4, pytest.approx(70.65))


def test_what_clients_choose_does_not_become_a_label(counts: Counts) -> None:
    """Any method on any path that is none of ours is one line for each status."""
    meters = Meters(counts)
    before = len(values(counts))
    for number in range(1000):
        meters.answered("", f"METHOD{number}", 404)
    found = values(counts)
    assert found["sandbox_http_requests_total{method=any,route=unmatched,status=404}"] == 1000
    assert len(found) == before + 1


def test_a_route_is_told_as_the_documentation_writes_it(counts: Counts) -> None:
    Meters(counts).answered("/v1/workspaces/<path:name>/files", "GET", 200)
    assert "sandbox_http_requests_total{method=GET,route=/v1/workspaces/{name}/files,status=200}" in values(
        counts
    )
