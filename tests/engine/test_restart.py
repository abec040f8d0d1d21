"""What survives when a process of ours is killed, and what is cleaned up after it. On a server of its own."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from expect import ended, problem
from plain import open_in
from stack import Stack, docker, running

KEY = {"Idempotency-Key": "across-a-restart"}


@pytest.fixture(scope="module")
def own() -> Iterator[Stack]:
    with running() as stack:
        yield stack


@pytest.fixture
def whole(own: Stack) -> Iterator[Stack]:
    """Whatever a test killed runs again afterwards."""
    yield own
    restart(own)
    own.close_sessions()


def restart(stack: Stack) -> None:
    if "keeper" not in stack.processes:
        stack.start_keeper()
    if "web" not in stack.processes:
        stack.start_web()
    until(lambda: keeper_settled(stack), 30)
    stack.wait_ready()


def keeper_settled(stack: Stack) -> bool:
    """Asked at its own door, as /readyz may repeat what it heard a second ago; its self-check is done."""
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError, ValueError):
        probe.settimeout(10)
        probe.connect(str(stack.dir / "state" / "run" / "keeper.sock"))
        probe.sendall(b'{"verb": "check"}\n')
        return bool(json.loads(probe.recv(1 << 16))["wall"] is not None)
    return False


def until(condition: Callable[[], Any], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def stop_within(seconds: float, stack: Stack, name: str) -> None:
    """As an init system does: SIGTERM, then SIGKILL for what is still there, which fails the test."""
    process = stack.processes[name]
    os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=seconds)
    stopped = process.returncode is not None
    stack.kill(name, signal.SIGKILL)
    assert stopped, f"{name} did not stop within {seconds} seconds"


def rows(stack: Stack, state: str) -> int:
    with contextlib.closing(sqlite3.connect(stack.dir / "state" / "store" / "store.db")) as store:
        return int(store.execute("SELECT count(*) FROM sessions WHERE state = ?", (state,)).fetchone()[0])


def in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except requests.RequestException as exc:
            results.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def test_a_web_killed_in_the_middle_of_a_command_loses_neither_session_nor_result(whole: Stack) -> None:
    session = open_in(whole)
    session.output("x=kept")
    command = "sleep 1.5; echo ran >> runs; echo result"
    thread, _ = in_background(lambda: session.execute(command, headers=KEY))
    time.sleep(0.5)
    whole.kill("web", signal.SIGKILL)
    thread.join(10)
    restart(whole)
    again = session.execute(command, headers=KEY)
    assert (again.status_code, again.json()["output"]) == (200, "result\n")
    assert session.output("cat runs; echo $x") == "ran\nkept\n"
    session.close()


def test_a_finished_result_is_given_again_after_a_restart_of_the_web(whole: Stack) -> None:
    session = open_in(whole)
    headers = {"Idempotency-Key": "finished-before"}
    first = session.execute("echo x >> runs; date +%N", headers=headers).json()
    whole.kill("web", signal.SIGKILL)
    restart(whole)
    second = session.execute("echo x >> runs; date +%N", headers=headers).json()
    assert first == second
    assert session.output("cat runs") == "x\n"
    session.close()


def test_a_stopped_web_lets_running_commands_end(whole: Stack) -> None:
    session = open_in(whole)
    thread, results = in_background(lambda: session.execute("sleep 1; echo whole"))
    time.sleep(0.4)
    stop_within(8, whole, "web")
    thread.join(10)
    assert results[0].json()["output"] == "whole\n"
    restart(whole)
    session.close()


def test_without_a_keeper_commands_still_run_and_opening_is_a_503_to_retry(whole: Stack) -> None:
    session = open_in(whole)
    whole.kill("keeper", signal.SIGKILL)
    assert session.output("echo still here") == "still here\n"
    answer = whole.call("POST", "/create_session")
    assert problem(answer, 503, "keeper_unavailable")["retryable"] is True
    assert int(answer.headers["Retry-After"]) > 0
    assert rows(whole, "opening") == 0
    restart(whole)
    assert session.output("echo and after") == "and after\n"
    assert open_in(whole).close().status_code == 204
    session.close()


def test_a_session_closed_without_a_keeper_is_over_at_once_and_removed_later(whole: Stack) -> None:
    session = open_in(whole)
    container = session.container
    whole.kill("keeper", signal.SIGKILL)
    assert session.close().status_code == 204
    ended(session.execute("true"), "closed")
    restart(whole)
    until(lambda: container not in docker("ps", "-a", "--format", "{{.Names}}").split(), 10)


def test_what_fell_due_while_the_keeper_was_down_is_expired_when_it_is_back(whole: Stack) -> None:
    session = open_in(whole, timeout=1)
    container = session.container
    whole.kill("keeper", signal.SIGKILL)
    time.sleep(1.2)
    whole.start_keeper()
    until(lambda: container not in docker("ps", "-a", "--format", "{{.Names}}").split(), 15)
    ended(session.get(), "expired")


def test_a_sandbox_that_died_while_the_keeper_was_down_is_told_as_dead(whole: Stack) -> None:
    session = open_in(whole)
    whole.kill("keeper", signal.SIGKILL)
    docker("kill", session.container)
    restart(whole)
    ended(session.execute("true"), "killed")


def test_a_dead_sandbox_without_a_keeper_is_a_503_and_not_a_500(whole: Stack) -> None:
    session = open_in(whole)
    whole.kill("keeper", signal.SIGKILL)
    docker("kill", session.container)
    answer = session.execute("true")
    assert answer.status_code == 503
    problem(answer, 503, answer.json()["code"])


@pytest.mark.parametrize("victim", ["keeper", "web"])
def test_a_crash_in_the_middle_of_create_leaves_nothing_behind(whole: Stack, victim: str) -> None:
    containers, directories = len(whole.containers()), len(whole.directories())
    thread, results = in_background(lambda: whole.call("POST", "/create_session", json={"user_id": victim}))
    until(lambda: len(whole.directories()) > directories, 10)
    time.sleep(0.05)
    whole.kill(victim, signal.SIGKILL)
    thread.join(100)
    restart(whole)
    if victim == "web":  # the keeper may have finished it; then it is that user's session
        whole.call("DELETE", f"/v1/sessions/{open_in(whole, user_id=victim).id}")
    else:
        problem(results[0], 503, "keeper_unavailable")
    until(lambda: (len(whole.containers()), len(whole.directories())) == (containers, directories), 15)
    assert rows(whole, "opening") == 0


def test_everything_killed_in_the_middle_of_create_leaves_nothing_behind(whole: Stack) -> None:
    """As when the machine loses its power."""
    containers, directories = len(whole.containers()), len(whole.directories())
    thread, _ = in_background(lambda: whole.call("POST", "/create_session"))
    until(lambda: len(whole.directories()) > directories, 10)
    time.sleep(0.05)
    whole.kill("web", signal.SIGKILL)
    whole.kill("keeper", signal.SIGKILL)
    thread.join(10)
    restart(whole)
    until(lambda: (len(whole.containers()), len(whole.directories())) == (containers, directories), 15)
    assert rows(whole, "opening") == 0


def test_orphans_of_an_earlier_life_are_swept_and_strangers_are_not(whole: Stack) -> None:
    image = "sandbox-server/default:latest"
    whole.kill("keeper", signal.SIGKILL)
    orphan, stranger = secrets.token_hex(16), secrets.token_hex(16)
    for name, instance in ((orphan, whole.instance), (stranger, "somebody-elses")):
        labels = {"instance": instance, "sandbox": name, "uid": "24000"}
        flags = [
            flag for key, value in labels.items() for flag in ("--label", f"sandbox-server.{key}={value}")
        ]
        docker("create", "--name", f"sandbox-{name}", *flags, image)
    lost = secrets.token_hex(16)
    os.makedirs(whole.dir / "state" / "sandboxes" / lost / "workspace")
    try:
        restart(whole)
        names = docker("ps", "-a", "--format", "{{.Names}}").split()
        assert f"sandbox-{orphan}" not in names
        assert f"sandbox-{stranger}" in names
        assert lost not in whole.directories()
    finally:
        docker("rm", "-f", f"sandbox-{stranger}")


def test_a_second_keeper_refuses_to_start_beside_the_first(own: Stack) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "server.keeper"], env=own.env, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert "another keeper" in done.stderr
    assert keeper_settled(own)


def test_the_keeper_stops_at_once_when_told_to_and_sandboxes_live_on(whole: Stack) -> None:
    session = open_in(whole)
    stop_within(5, whole, "keeper")
    assert session.output("echo alive") == "alive\n"
    restart(whole)
    session.close()


def test_the_keeper_stops_at_once_also_while_it_is_asked_for_things(whole: Stack) -> None:
    for _ in range(3):
        asking = [in_background(lambda: keeper_settled(whole))[0] for _ in range(40)]
        stop_within(5, whole, "keeper")
        for thread in asking:
            thread.join(15)
        restart(whole)


def test_no_session_of_these_tests_is_left(own: Stack) -> None:
    """Whatever was killed: each test's sessions are closed, expired, or dead and told so."""
    assert own.call("GET", "/v1/sessions").json()["sessions"] == []
    assert own.containers() == own.directories() == []
