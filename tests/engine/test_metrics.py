"""/metrics as Prometheus reads it: numbers move when the thing happens, and nothing else moves them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from expect import problem
from plain import Session, open_in, opening
from prometheus_client.parser import text_string_to_metric_families
from stack import ROOT, Stack, docker, running

Numbers = dict[str, float]
NAME = re.compile(r"\bsandbox_[a-z_]+")
EXECUTE = "sandbox_http_requests_total{method=POST,route=/v1/sessions/{session_id}/execute,status=200}"


@pytest.fixture(scope="module")
def measured() -> Iterator[Stack]:
    with running(SANDBOX_POOL_MIN="1", SANDBOX_POOL_MAX="1", SANDBOX_SESSIONS_MAX="4") as stack:
        yield stack


@pytest.fixture
def session(measured: Stack) -> Iterator[Session]:
    with opening(measured) as open_one:
        yield open_one()


@cache
def operators_key(stack: Stack) -> str:
    return str(json.loads(stack.ctl("key", "new", "--admin", "--json"))["key"])


def scrape(stack: Stack) -> requests.Response:
    """A connection of its own: either worker may answer. What was said is repeated for a second."""
    time.sleep(1.05)
    return stack.call("GET", "/metrics", key=operators_key(stack))


def numbers(stack: Stack) -> Numbers:
    found = {}
    for family in text_string_to_metric_families(scrape(stack).text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def until(true: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)


def grown(stack: Stack, name: str, before: Numbers) -> float:
    return numbers(stack).get(name, 0) - before.get(name, 0)


def workers(stack: Stack) -> list[int]:
    command = ["pgrep", "-P", str(stack.processes["web"].pid)]
    return [int(pid) for pid in subprocess.run(command, capture_output=True, timeout=30).stdout.split()]


def test_prometheus_can_read_it(measured: Stack) -> None:
    answer = scrape(measured)
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = list(text_string_to_metric_families(answer.text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "a family is told once"
    assert all(family.documentation and family.type != "unknown" for family in families)
    assert all(name.startswith("sandbox_") for name in names)


def test_executions_are_counted_over_both_workers(measured: Stack, session: Session) -> None:
    """30 commands on 30 connections: whoever is asked tells of all of them."""
    before = numbers(measured)
    for _ in range(30):
        session.output("true")
    for _ in range(4):
        after = numbers(measured)
        for name in (
            EXECUTE,
            "sandbox_executions_total{mode=wait}",
            "sandbox_execution_results_total{outcome=ok}",
            "sandbox_execution_duration_seconds_count",
            "sandbox_execution_overhead_seconds_bucket{le=+Inf}",
        ):
            assert after[name] - before.get(name, 0) == 30, name


def test_a_slow_command_is_in_the_latency_and_not_in_what_we_add(measured: Stack, session: Session) -> None:
    before = numbers(measured)
    session.output("sleep 1.1")
    after = numbers(measured)
    assert (
        after["sandbox_execution_duration_seconds_sum"]
        >= 1.1 + before["sandbox_execution_duration_seconds_sum"]
    )
    long = "sandbox_execution_duration_seconds_bucket{le=1.0}"
    assert after[long] == before[long]
    added = "sandbox_execution_overhead_seconds_sum"
    assert after[added] - before[added] < 1.0


def test_outcomes_are_told_apart(measured: Stack, session: Session) -> None:
    before = numbers(measured)
    session.execute("exit 3")
    session.execute("sleep 60", timeout=0.5)
    after = numbers(measured)
    for outcome in ("failed", "timed_out"):
        name = f"sandbox_execution_results_total{{outcome={outcome}}}"
        assert after[name] == before[name] + 1


def test_no_counter_falls_when_a_worker_is_killed(measured: Stack, session: Session) -> None:
    """Its numbers stay, its successor goes on with them, and no file is added for it."""
    for _ in range(20):
        session.output("true")
    directory = Path(measured.env["SANDBOX_STATE_DIR"], "store", "metrics")
    before, files = numbers(measured), sorted(directory.iterdir())
    for victim in workers(measured):
        subprocess.run(["kill", "-KILL", str(victim)], check=True, timeout=30)
        until(lambda gone=victim: gone not in workers(measured) and len(workers(measured)) == 2)
    measured.wait_ready()
    after = numbers(measured)
    fallen = {name for name, value in before.items() if _only_grows(name) and after.get(name, 0) < value}
    assert fallen == set()
    for _ in range(10):
        session.output("true")
    assert grown(measured, EXECUTE, before) == 10
    assert sorted(directory.iterdir()) == files


def _only_grows(name: str) -> bool:
    return bool(re.search(r"_(total|count|sum|bucket)(\{|$)", name))


def test_sessions_are_counted_by_state_and_by_how_they_ended(measured: Stack) -> None:
    before = numbers(measured)
    one = open_in(measured)
    during = numbers(measured)
    one.close()
    after = numbers(measured)
    running_ones = [told["sandbox_sessions{state=running}"] for told in (before, during, after)]
    assert running_ones == [running_ones[0], running_ones[0] + 1, running_ones[0]]
    closed = "sandbox_sessions_ended_total{cause=closed}"
    assert after[closed] == before[closed] + 1


def test_a_session_that_sleeps_is_told_apart(measured: Stack, session: Session) -> None:
    before = numbers(measured)
    place = f"/v1/sessions/{session.id}/pause"
    for body, state in (({}, "paused"), ({"cold": True}, "cold")):
        assert measured.call("POST", place, json=body).status_code == 200
        name = f"sandbox_sessions{{state={state}}}"
        assert grown(measured, name, before) == 1


def test_a_lease_that_ran_out_is_counted_once(measured: Stack) -> None:
    before = numbers(measured)
    one = open_in(measured, timeout=1)
    until(lambda: one.get().status_code == 410)
    assert grown(measured, "sandbox_sessions_ended_total{cause=expired}", before) == 1


def test_warm_and_cold_creates_are_told_apart(measured: Stack) -> None:
    """The pool has one of the default size; another size is started for whoever asks."""
    until(lambda: numbers(measured)["sandbox_pool_warm{image=default}"] == 1)
    before = numbers(measured)
    assert before["sandbox_pool_wanted{image=default}"] == 1
    open_in(measured).close()
    open_in(measured, memory=128 << 20).close()
    after = numbers(measured)
    for start in ("warm", "cold"):
        name = f"sandbox_create_duration_seconds_count{{start={start}}}"
        assert after[name] == before[name] + 1
    assert (
        after["sandbox_engine_call_duration_seconds_count"]
        > before["sandbox_engine_call_duration_seconds_count"]
    )


def test_running_commands_and_open_streams_are_there_while_they_last(
    measured: Stack, session: Session
) -> None:
    session.execute("sleep 300", background=True, shell=None, timeout=300)
    execution = measured.call("GET", f"/v1/sessions/{session.id}/executions").json()["executions"][-1]
    place = f"/v1/sessions/{session.id}/executions/{execution['execution_id']}"
    with measured.call("GET", f"{place}/events", stream=True) as stream:
        chunks = stream.iter_content(1)
        next(chunks)
        during = numbers(measured)
        assert (during["sandbox_executions_running"], during["sandbox_streams_open"]) == (1, 1)
        measured.call("DELETE", place)
    until(lambda: numbers(measured)["sandbox_streams_open"] == 0)
    assert numbers(measured)["sandbox_executions_running"] == 0


def test_a_limit_that_is_reached_is_told_by_name(measured: Stack) -> None:
    before = numbers(measured)
    with opening(measured) as open_one:
        for _ in range(4):
            open_one()
        assert measured.call("POST", "/create_session", json={}).status_code == 429
    after = numbers(measured)
    for name in (
        "sandbox_quota_refusals_total{limit=sessions}",
        "sandbox_problems_total{code=too_many_sessions}",
    ):
        assert after[name] == before.get(name, 0) + 1


def test_requests_that_come_too_fast_are_told_by_the_rate_that_they_broke(measured: Stack) -> None:
    """Wrong keys from one address, more than a minute allows."""
    before = numbers(measured)
    sent = {"Authorization": "Bearer e2b_wrong", "X-Forwarded-For": "192.0.2.7"}

    def guess() -> bool:
        return requests.get(f"{measured.url}/v1/sessions", headers=sent, timeout=30).status_code == 429

    until(lambda: any([guess() for _ in range(61)]))
    assert grown(measured, "sandbox_rate_limit_refusals_total{limit=rate_failures}", before) >= 1


def test_bytes_are_counted_both_ways_streams_too(measured: Stack, session: Session) -> None:
    place = f"/v1/sessions/{session.id}/files/content?path=big"
    data, before = b"x" * 300_000, numbers(measured)
    assert measured.call("PUT", place, data=data).status_code == 201
    assert measured.call("GET", place).content == data
    after = numbers(measured)
    for name in ("sandbox_received_bytes_total", "sandbox_sent_bytes_total"):
        assert 300_000 <= after[name] - before[name] < 350_000


def test_what_clients_make_up_does_not_grow_the_answer(measured: Stack, session: Session) -> None:
    """Paths, methods, ids, hosts and bodies of their own: a few lines at most, and none of their words."""
    sent = {"Host": "evil.example", "X-Forwarded-For": "evil-address", "User-Agent": "evil-agent"}
    requests.get(f"{measured.url}/evil", headers=sent, timeout=30)
    measured.call("GET", "/v1/sessions/evil")
    measured.call("POST", "/execute", json={"evil": 1})
    before = len(scrape(measured).text.splitlines())
    elsewhere = {**sent, "X-Forwarded-For": "198.51.100.9"}  # or other tests' wrong keys are too many
    for number in range(60):
        measured.call(f"EVIL{number}", f"/evil-{number}")
        measured.call("GET", f"/v1/sessions/evil{number}")
        measured.call("POST", "/execute", json={f"evil{number}": 1})
        requests.get(f"{measured.url}/evil-{number}?evil={number}", headers=elsewhere, timeout=30)
    text = scrape(measured).text
    assert len(text.splitlines()) <= before + 8
    assert "evil" not in text.lower() and session.id not in text and "tenant=" not in text


def test_a_restarted_guest_is_counted(measured: Stack) -> None:
    before = numbers(measured)
    one = open_in(measured)
    docker("restart", "-t", "1", one.container)
    assert one.execute("true").status_code == 410
    assert grown(measured, "sandbox_guest_restarts_total", before) == 1


def test_what_a_dead_keeper_left_is_swept_and_counted(measured: Stack) -> None:
    """And while there is none, the rest is told all the same."""
    until(lambda: numbers(measured)["sandbox_pool_warm{image=default}"] == 1)
    measured.kill("keeper", signal.SIGKILL)
    without = numbers(measured)
    assert (without["sandbox_keeper_up"], without["sandbox_store_up"]) == (0, 1)
    assert EXECUTE in without and "sandbox_orphans_swept_total" not in without
    measured.start_keeper()
    measured.wait_ready()
    told = numbers(measured)
    assert (told["sandbox_keeper_up"], told["sandbox_orphans_swept_total"]) == (1, 1)


def test_it_says_what_is_running_and_how_full_the_storage_is(measured: Stack) -> None:
    told = numbers(measured)
    version = measured.call("GET", "/v1/version").json()["version"]
    assert any(f"version={version}" in name for name in told if name.startswith("sandbox_build_info"))
    assert 0 < told["sandbox_storage_used_bytes"] < told["sandbox_storage_size_bytes"] == 3 << 30


def test_only_the_operator_reads_it(measured: Stack) -> None:
    """No stranger, no tenant, and not who administers one."""
    problem(requests.get(f"{measured.url}/metrics", timeout=30), 401, "unauthorized")
    problem(measured.call("GET", "/metrics"), 403, "scope_missing")
    made = measured.ctl("key", "new", "--tenant", "default", "--scope", "admin", "--json")
    problem(measured.call("GET", "/metrics", key=json.loads(made)["key"]), 403, "scope_missing")
    assert scrape(measured).status_code == 200


def names_told(stack: Stack) -> set[str]:
    return {name.partition("{")[0] for name in numbers(stack)}


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            yield panel


def dashboard_queries() -> list[str]:
    dashboard = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text())
    variables = [variable["query"] for variable in dashboard["templating"]["list"]]
    queries = [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]
    return queries + [query["query"] for query in variables if isinstance(query, dict)]


def rule_queries() -> list[str]:
    told = yaml.safe_load((ROOT / "deploy" / "prometheus-rules.yml").read_text())
    rules = [rule for group in told["groups"] for rule in group["rules"]]
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for rule in rules)
    return [rule["expr"] for rule in rules]


@pytest.mark.parametrize("queries", [dashboard_queries, rule_queries], ids=["dashboard", "alerts"])
def test_every_metric_that_is_asked_for_exists(measured: Stack, queries: Callable[[], list[str]]) -> None:
    measured.call("GET", "/v1/sessions/none")  # a problem, so that there is one to tell of
    told = names_told(measured)
    asked = {name for query in queries() for name in NAME.findall(query)}
    assert asked and asked - told == set()


def test_every_metric_is_documented_and_shown(measured: Stack) -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    shown = " ".join(dashboard_queries())
    for name in names_told(measured):
        base = re.sub("_(bucket|count|sum)$", "", name)
        assert f"`{base}`" in text, base
        unseen = {"sandbox_keeper_process_virtual_memory_bytes", "sandbox_keeper_process_start_time_seconds"}
        assert base in shown or base in unseen, base


def test_every_documented_metric_exists(measured: Stack) -> None:
    measured.call("GET", "/v1/sessions/none")
    told = {re.sub("_(bucket|count|sum)$", "", name) for name in names_told(measured)}
    assert set(re.findall("`(sandbox_[a-z_]+)`", (ROOT / "docs" / "metrics.md").read_text())) <= told


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    """Ids once each, a data source that can be chosen, and no panel over another."""
    dashboard = json.loads((ROOT / "deploy" / "grafana-dashboard.json").read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids)) and dashboard["schemaVersion"] >= 39
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells
    for panel in panels(dashboard):
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["title"] and all(target["refId"] for target in panel["targets"])
