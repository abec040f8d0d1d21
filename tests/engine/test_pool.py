"""Warm sandboxes: claimed in a moment, by one session ever, and never stale, dead or left behind."""

from __future__ import annotations

import ast
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from plain import Session, open_in
from stack import Stack, docker, running

BASE = "sandbox-server/default:latest"
IMAGE = "sandbox-server/pool-test:latest"
MANY = 50


def until(true: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


def filled(stack: Stack, count: int) -> set[str]:
    """The warm ones, when there are so many and nothing is being started any more."""
    until(lambda: len(stack.containers()) == count)
    time.sleep(0.5)  # one that has just been started is not in the pool before its shell runs
    found = set(stack.containers())
    assert len(found) == count
    return found


def claims(stack: Stack) -> float:
    """How many sessions were opened from the pool."""
    told = stack.call("GET", "/metrics", stack.admin_key).text
    found = re.search(r'^sandbox_create_duration_seconds_count{start="warm"} (\S+)$', told, re.MULTILINE)
    return float(found[1]) if found else 0.0


@pytest.fixture(scope="module")
def pooled() -> Iterator[Stack]:
    docker("tag", BASE, IMAGE)
    settings = {"SANDBOX_POOL_MIN": "3", "SANDBOX_POOL_MAX": "3", "SANDBOX_IMAGES": f"default={IMAGE}"}
    with running(**settings) as stack:
        yield stack
    docker("rmi", IMAGE)


def container(session: Session) -> str:
    return docker("inspect", "-f", "{{.Id}}", session.container).strip()


def test_a_session_gets_a_sandbox_that_waited_for_it(pooled: Stack) -> None:
    warm = filled(pooled, 3)
    session = open_in(pooled)
    assert container(session) in warm
    assert session.output("whoami; pwd") == "user\n/workspace\n"
    session.close()


def test_its_shell_runs_before_anybody_asks_for_it(pooled: Stack) -> None:
    filled(pooled, 3)
    began = time.time()
    session = open_in(pooled)
    age = int(session.output("echo $(($(date +%s) - $(stat -c %Y /proc/$$)))"))
    assert age >= int(time.time() - began)
    session.close()


def test_variables_of_the_session_reach_what_runs_already_and_what_starts_later(pooled: Stack) -> None:
    filled(pooled, 3)
    session = open_in(pooled, env={"QUOTE": 'it\'s "so" $HOME\n', "PATH": "/usr/bin:/bin"})
    for where in ({}, {"shell": "other"}, {"shell": None}):
        assert session.output('printf %s "$QUOTE"; printf %s $PATH', **where) == (
            'it\'s "so" $HOME\n/usr/bin:/bin'
        )
    answer = session.execute("import os; os.environ['QUOTE']", language="python").json()
    assert answer["value"] == repr('it\'s "so" $HOME\n')
    session.close()


def test_a_sandbox_is_used_by_one_session_ever(pooled: Stack) -> None:
    used = set()
    for _ in range(6):
        session = open_in(pooled)
        session.output("touch /workspace/trace /tmp/trace")
        assert container(session) not in used
        used.add(container(session))
        assert session.output("ls /workspace /tmp").count("trace") == 2
        session.close()
    until(lambda: not used & set(pooled.containers()))


def test_other_sizes_are_opened_cold(pooled: Stack) -> None:
    warm = filled(pooled, 3)
    session = open_in(pooled, memory=128 << 20)
    assert container(session) not in warm
    session.close()


@pytest.mark.timeout(400)
def test_fifty_at_once_are_all_served_the_warm_ones_first(pooled: Stack) -> None:
    warm = filled(pooled, 3)
    with ThreadPoolExecutor(MANY) as pool:
        answers = list(pool.map(lambda _: pooled.call("POST", "/create_session", timeout=180), range(MANY)))
        refused = [answer.text for answer in answers if answer.status_code != 200]
        assert not refused, f"{refused}\n{pooled.log('keeper')[-3000:]}"
        sessions = [Session(pooled, answer.json()["session_id"], answer.json()) for answer in answers]
        used = {container(session) for session in sessions}
        assert warm <= used and len(used) == MANY
        assert list(pool.map(lambda one: one.output("echo here"), sessions)) == MANY * ["here\n"]
        list(pool.map(Session.close, sessions))


def test_a_demand_that_lasts_is_met_from_the_pool(pooled: Stack) -> None:
    """Filling goes on between one session and the next, however many there were."""
    filled(pooled, 3)
    before = claims(pooled)
    for _ in range(12):
        session = open_in(pooled)
        time.sleep(1)
        session.close()
    assert claims(pooled) - before >= 9


def test_a_dead_one_is_never_given_away_and_is_replaced(pooled: Stack) -> None:
    warm = filled(pooled, 3)
    docker("kill", *warm)
    session = open_in(pooled)
    assert session.output("echo alive") == "alive\n"
    session.close()
    until(lambda: len(set(pooled.containers()) - warm) == 3 and not warm & set(pooled.containers()))


def test_another_image_of_the_same_name_empties_it(pooled: Stack) -> None:
    warm = filled(pooled, 3)
    old = docker("inspect", "-f", "{{.Id}}", IMAGE)
    made = docker("create", BASE).strip()
    docker("commit", "--change", "LABEL stale=no", made, IMAGE)
    docker("rm", made)
    assert docker("inspect", "-f", "{{.Id}}", IMAGE) != old
    until(lambda: len(set(pooled.containers()) - warm) == 3 and not warm & set(pooled.containers()))


def test_a_keeper_that_stops_takes_its_pool_along(pooled: Stack) -> None:
    filled(pooled, 3)
    session = open_in(pooled)
    pooled.kill("keeper", signal.SIGTERM)
    assert pooled.containers() == [container(session)]
    assert session.output("echo on") == "on\n"
    pooled.start_keeper()
    pooled.wait_ready()
    session.close()


def test_a_keeper_that_is_killed_leaves_nothing_that_the_next_one_does_not_sweep(pooled: Stack) -> None:
    warm = filled(pooled, 3)
    pooled.kill("keeper", signal.SIGKILL)
    pooled.start_keeper()
    until(lambda: len(set(pooled.containers()) - warm) == 3 and not warm & set(pooled.containers()))
    session = open_in(pooled)
    assert container(session) not in warm
    session.close()


@pytest.fixture(scope="module")
def flavoured() -> Iterator[Stack]:
    settings = {"SANDBOX_POOL_MIN": "1", "SANDBOX_POOL_MAX": "4", "SANDBOX_POOL_LANGUAGES": "bash,python"}
    with running(**settings) as stack:
        yield stack


def test_its_python_runs_before_anybody_asks_for_it_and_knows_the_session(flavoured: Stack) -> None:
    filled(flavoured, 1)
    time.sleep(1)
    began = time.time()
    session = open_in(flavoured, env={"MINE": "yes"})
    code = "import os, time\n(os.stat('/proc/self').st_mtime, os.environ['MINE'], os.getcwd(), os.listdir())"
    started, mine, place, there = ast.literal_eval(session.execute(code, language="python").json()["value"])
    assert started < began and (mine, place, there) == ("yes", "/workspace", [])
    session.close()


def test_demand_decides_how_many_wait_within_bounds(flavoured: Stack) -> None:
    for _ in range(6):
        open_in(flavoured).close()
    filled(flavoured, 4)
