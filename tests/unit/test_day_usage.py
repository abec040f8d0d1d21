"""What was used in a day: counted over processes, charged once, kept through any kill."""

from __future__ import annotations

import multiprocessing
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_store import draft

from server.day_usage import DAY_SECONDS, DayUsage
from server.detached import Detached, One
from server.store import Store
from server.usage_rows import UsageRows, Used

SPAWN = multiprocessing.get_context("spawn")
NOW = 20_000.5 * DAY_SECONDS


def usage(store: Store, tmp_path: Path, now: list[float]) -> DayUsage:
    return DayUsage(tmp_path / "usage", 2, UsageRows(store), 3600, lambda: now[0])


def _count(path: Path, store: Path, go: Any) -> None:
    counted = DayUsage(path, 2, UsageRows(Store(store)), 3600, lambda: NOW)
    for _ in range(1000):
        counted.add("a", "u", 1, 2)
    counted.begin("a", "u")  # never ended: the process is killed
    go.wait(30)
    go.wait(30)


def test_processes_count_together_and_nothing_is_lost_when_they_are_killed(
    store: Store, tmp_path: Path
) -> None:
    go = SPAWN.Barrier(3)
    others = [
        SPAWN.Process(target=_count, args=(tmp_path / "usage", tmp_path / "store.db", go)) for _ in "xy"
    ]
    for one in others:
        one.start()
    go.wait(60)
    for one in others:
        one.kill()
        one.join(30)
    now = [NOW + 10]
    found = usage(store, tmp_path, now).used("a")
    assert (found.received, found.sent) == (2000, 4000)
    assert found.seconds == pytest.approx(20), "what they were waiting for is charged up to now"
    now[0] += 100
    assert usage(store, tmp_path, now).used("a", "u").seconds == pytest.approx(20), "and no further"


def test_a_command_counts_while_it_runs_and_what_it_took_when_it_has_ended(
    store: Store, tmp_path: Path
) -> None:
    now = [NOW]
    counted = usage(store, tmp_path, now)
    running = counted.begin("a", "u")
    now[0] += 5
    assert counted.used("a").seconds == pytest.approx(5)
    counted.end(running, 2.5)
    assert counted.used("a").seconds == counted.used("a", "u").seconds == 2.5
    assert counted.used("b") == Used()


def test_a_new_day_begins_with_nothing_and_the_old_one_is_written_down(store: Store, tmp_path: Path) -> None:
    now = [NOW]
    counted = usage(store, tmp_path, now)
    counted.add("a", None, 10, 20)
    now[0] += DAY_SECONDS
    assert counted.used("a") == Used()
    counted.add("a", None, 1, 1)
    usage(store, tmp_path, now).write_down()
    rows = UsageRows(store)
    assert [(one.day, one.used.received) for one in rows.history("a", 0)] == [(20_000, 10), (20_001, 1)]
    usage(store, tmp_path, now).write_down()
    assert [one.used.sent for one in rows.history("a", 0)] == [20, 1], "however often it is written down"


def test_what_finds_no_place_in_memory_is_charged_in_the_store(store: Store, tmp_path: Path) -> None:
    now = [NOW]
    counted = usage(store, tmp_path, now)
    for number in range(6000):  # more users than there are places
        counted.add("a", f"user {number}", 1, 0)
    assert counted.used("a").received == 6000
    assert sum(counted.used("a", f"user {number}").received for number in range(6000)) == 6000


def opened(store: Store) -> str:
    session = draft(user_id="u")
    store.reserve(session, lambda connection, wanted: None)
    store.attach(session.id, secrets.token_hex(16), "unix:/nowhere", 1000.0)
    return session.id


def charged(store: Store, user: str = "") -> float:
    return sum(one.used.seconds for one in UsageRows(store).history("a", 0, users=True) if one.user == user)


def test_what_outlives_its_call_is_charged_once_for_what_it_took(store: Store) -> None:
    session, detached = opened(store), Detached(store)
    one = One("a", session, "x", 1e12, most=60)
    detached.add(one, 1000.0)
    assert UsageRows(store).going_on("a", "u", 1030.0) == 30
    detached.remove(session, "x", 12.5)
    detached.remove(session, "x", 12.5)
    assert charged(store) == charged(store, "u") == 12.5
    detached.add(replace(one, execution="y"), 1000.0)
    store.end(session, "closed", 2000.0)
    assert charged(store) == 72.5, "its session has ended, and nobody has seen its end: its timeout at most"


def test_a_terminal_that_waits_costs_nothing(store: Store) -> None:
    session, detached = opened(store), Detached(store)
    detached.add(One("a", session, "terminal", 1e12), 1000.0)
    store.end(session, "closed", 2000.0)
    assert charged(store) == 0
