"""Sudden deaths of the server itself (A101), on a server of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import requests
from invariants import Session, Tenant, eventually, server_pids
from stack import Stack, running


@pytest.fixture(scope="module")
def doomed() -> Iterator[Stack]:
    with running() as server:
        yield server


@pytest.fixture
def tenant(doomed: Stack) -> Iterator[Tenant]:
    owner = Tenant(doomed, doomed.key)
    yield owner
    owner.close_all()


def keeper_answers(stack: Stack) -> None:
    """`/readyz` may repeat what it knew a moment ago; this asks the keeper itself."""

    def check() -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            assert connection.connect_ex(str(stack.dir / "state" / "run" / "keeper.sock")) == 0

    eventually(check, 30)


def quietly(session: Session, command: str) -> threading.Thread:
    def run() -> None:
        with contextlib.suppress(requests.RequestException):
            session.execute(command, timeout=20)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.7)
    return thread


def test_a101_a_web_process_killed_in_the_middle_of_a_command_loses_no_session(
    doomed: Stack, tenant: Tenant
) -> None:
    """The command goes on in its sandbox; the session and its state are there after the restart."""
    session = tenant.open()
    session.run("x=kept")
    waiting = quietly(session, "sleep 2; echo done >done")
    doomed.kill("web", signal.SIGKILL)
    waiting.join(timeout=30)
    doomed.start_web()
    doomed.wait_ready()
    assert session.run("cat done; echo $x", timeout=10)["stdout"] == "done\nkept\n"


def test_a101_one_worker_killed_is_replaced_and_the_other_answers_meanwhile(
    doomed: Stack, tenant: Tenant
) -> None:
    session = tenant.open()
    master = doomed.processes["web"].pid
    worker = next(pid for pid in server_pids(doomed) if pid not in (master, doomed.processes["keeper"].pid))
    os.kill(worker, signal.SIGKILL)
    for _ in range(20):
        try:
            assert session.run("echo hi")["stdout"] == "hi\n"
        except requests.ConnectionError:
            continue  # it was with the worker that died
    session.is_usable()


def test_a101_a_keeper_killed_in_the_middle_of_opening_leaves_nothing_behind(
    doomed: Stack, tenant: Tenant
) -> None:
    """Whatever moment it dies in: after its restart there are as many containers as sessions."""
    kept = tenant.open()
    for delay in (0.02, 0.1, 0.25, 0.4):
        threads = [threading.Thread(target=doomed.call, args=("POST", "/v1/sessions")) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(delay)
        doomed.kill("keeper", signal.SIGKILL)
        assert kept.run("echo hi")["stdout"] == "hi\n"
        doomed.start_keeper()
        for thread in threads:
            thread.join(timeout=100)
        keeper_answers(doomed)

    def check() -> None:
        listed = doomed.call("GET", "/v1/sessions?limit=1000").json()["sessions"]
        assert len(doomed.containers()) == len(doomed.directories()) == len(listed)

    eventually(check, 15)
    doomed.close_sessions()


def test_a101_without_a_keeper_commands_run_and_opening_is_refused_as_retryable(
    doomed: Stack, tenant: Tenant
) -> None:
    session = tenant.open()
    doomed.kill("keeper", signal.SIGKILL)
    try:
        assert session.run("echo hi")["stdout"] == "hi\n"
        answer = doomed.call("POST", "/v1/sessions")
        assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (
            503,
            "keeper_unavailable",
            True,
        )
    finally:
        doomed.start_keeper()
        keeper_answers(doomed)
    session.is_usable()


def test_a104_a_clock_that_jumps_back_neither_ends_nor_immortalises_a_session(
    doomed: Stack, tenant: Tenant
) -> None:
    """Times an hour in the future, as after a jump back: using the session brings them right again."""
    import sqlite3
    from contextlib import closing

    session = tenant.open(timeout=60)
    with closing(sqlite3.connect(doomed.dir / "state" / "store" / "store.db")) as store:
        store.execute("UPDATE sessions SET last_used_at = ? WHERE id = ?", (time.time() + 3600, session.id))
        store.commit()
    assert session.run("echo hi")["stdout"] == "hi\n"
    with closing(sqlite3.connect(doomed.dir / "state" / "store" / "store.db")) as store:
        (used,) = store.execute("SELECT last_used_at FROM sessions WHERE id = ?", (session.id,)).fetchone()
    assert used <= time.time() + 61
