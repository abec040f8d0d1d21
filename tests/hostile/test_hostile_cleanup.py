"""Attacks on the end of sessions: races, sudden deaths, leftovers (A100, A102)."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from invariants import Neighbour, Session, Tenant, eventually, is_problem, nothing_left
from stack import Stack, docker


def in_the_background(session: Session, command: str) -> tuple[threading.Thread, list[requests.Response]]:
    answers: list[requests.Response] = []
    thread = threading.Thread(target=lambda: answers.append(session.execute(command, timeout=20)))
    thread.start()
    time.sleep(0.7)
    return thread, answers


def test_a100_closing_in_the_middle_of_a_command_ends_it_with_the_cause(session: Session) -> None:
    """And closing twice, and running afterwards, are answered too."""
    container, directory = session.container, session.directory
    thread, answers = in_the_background(session, "sleep 20")
    with ThreadPoolExecutor(4) as pool:
        closed = list(pool.map(lambda _: session.close().status_code, range(4)))
    thread.join(timeout=10)
    assert set(closed) <= {204, 410} and 204 in closed
    assert is_problem(answers[0], "session_ended")["cause"] == "closed"
    assert is_problem(session.execute("true"), "session_ended")["cause"] == "closed"
    nothing_left(session, container, directory)


def test_a100_many_sessions_opened_and_closed_at_once_leave_nothing(
    attacker: Tenant, stack: Stack, neighbour: Neighbour
) -> None:
    before = len(stack.containers())

    def open_and_close(number: int) -> tuple[int, int]:
        session = attacker.open()
        if number % 2:
            session.run("sleep 60 &")
        return session.close().status_code, session.close().status_code

    with neighbour.undisturbed(), ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(open_and_close, range(24)))
    assert set(codes) == {(204, 410)}

    def check() -> None:
        assert len(stack.containers()) == before
        assert len(stack.directories()) == before

    eventually(check, 10)


def test_a_container_killed_in_the_middle_of_a_command_is_told_at_once(session: Session) -> None:
    container, directory = session.container, session.directory
    thread, answers = in_the_background(session, "sleep 20")
    began = time.monotonic()
    docker("kill", container)
    thread.join(timeout=15)
    assert time.monotonic() - began < 6
    assert is_problem(answers[0], "session_ended")["cause"] == "killed"
    nothing_left(session, container, directory)


def test_a_container_removed_behind_our_back_is_told_too(session: Session) -> None:
    container, directory = session.container, session.directory
    session.run("true")
    docker("rm", "-f", container)
    assert is_problem(session.execute("true", timeout=1), "session_ended")["cause"] in ("lost", "killed")
    nothing_left(session, container, directory)


def test_a_frozen_container_holds_no_call_for_ever_and_can_be_closed(
    session: Session, neighbour: Neighbour
) -> None:
    container, directory = session.container, session.directory
    session.run("true")
    docker("pause", container)
    try:
        with neighbour.undisturbed():
            is_problem(session.execute("true", timeout=0.1, wait=40), "guest_unavailable")
            assert session.close().status_code == 204
    finally:
        if docker("ps", "-aq", "--filter", f"name={container}") != "":
            docker("unpause", container)
    nothing_left(session, container, directory)


def test_a102_a_new_session_never_sees_a_byte_of_an_old_one_with_its_uid(attacker: Tenant) -> None:
    """The uid is used again; files, processes, segments, queues and variables are not."""
    first = attacker.open()
    uid = first.run("id -u")["stdout"]
    leave = "echo secret >secret; cp secret /tmp; cp secret /dev/shm; ipcmk -M 1000; touch /dev/mqueue/q"
    first.run(f"{leave}; (setsid sleep 100 &); cd /tmp; export LEFT=secret")
    first.close()
    for _ in range(4):
        session = attacker.open()
        look = "find ~ /tmp /dev/shm /dev/mqueue -mindepth 1; ipcs -m | grep 0x; pgrep sleep; echo $LEFT$PWD"
        assert session.run(look)["stdout"] == "/workspace\n"
        if session.run("id -u")["stdout"] == uid:
            return
    pytest.fail("the uid was not used again: the test proves nothing")


def test_sessions_beyond_the_limit_are_refused_however_many_ask_at_once(stack: Stack) -> None:
    """Reserved before the engine is asked: twelve at once never become more than the limit."""
    from stack import running

    with running(SANDBOX_SESSIONS_MAX="3") as small:
        with ThreadPoolExecutor(12) as pool:
            codes = pool.map(lambda _: small.call("POST", "/v1/sessions").status_code, range(12))
        assert sorted(codes) == [201] * 3 + [429] * 9
        assert len(small.containers()) == 3
