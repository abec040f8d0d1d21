"""Several workers, many connections: nothing about a session lives in one worker, and nobody can hog them."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest
import requests
from plain import Open, Session
from stack import Stack, web_uid

HALF = [
    b"POST /execute HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: ",
    b"POST /execute HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{",
    b"",
]


def workers(stack: Stack) -> list[int]:
    master = stack.processes["web"].pid
    return [
        int(pid) for pid in subprocess.run(["pgrep", "-P", str(master)], capture_output=True).stdout.split()
    ]


def test_two_workers_run_as_the_web_user(stack: Stack) -> None:
    found = workers(stack)
    assert len(found) == 2
    for pid in found:
        status = subprocess.run(["ps", "-o", "uid=", "-p", str(pid)], capture_output=True, text=True).stdout
        assert int(status) == web_uid()


def test_a_session_answers_alike_whichever_worker_is_asked(session: Session) -> None:
    session.output("n=0")
    for number in range(1, 30):  # a connection each: the kernel gives them to both workers
        assert session.output("n=$((n + 1)); echo $n") == f"{number}\n"


def test_a_worker_that_dies_is_replaced_and_sessions_stay(stack: Stack, session: Session) -> None:
    session.output("x=kept")
    victim = workers(stack)[0]
    subprocess.run(["kill", "-KILL", str(victim)], check=True)
    deadline = time.monotonic() + 20
    while (victim in workers(stack) or len(workers(stack)) < 2) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(workers(stack)) == 2
    assert session.output("echo $x") == "kept\n"


@contextlib.contextmanager
def crowd(stack: Stack, said: bytes, number: int = 200) -> Iterator[None]:
    with contextlib.ExitStack() as opened:
        for _ in range(number):
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", stack.port), timeout=10))
            connection.sendall(said)
        yield


@pytest.mark.parametrize("said", HALF, ids=["half a header", "half a body", "nothing"])
def test_200_half_open_connections_without_a_key_do_not_stop_a_good_client(
    stack: Stack, session: Session, said: bytes
) -> None:
    with crowd(stack, said):
        for _ in range(10):
            began = time.monotonic()
            assert session.output("echo good") == "good\n"
            assert time.monotonic() - began < 2


def test_many_commands_at_once_on_one_session_all_get_a_clear_answer(session: Session) -> None:
    """More than may run: the rest is told so, with a 429; never a 500 or 503."""
    answers: list[requests.Response] = []
    threads = [
        threading.Thread(target=lambda: answers.append(session.execute("sleep 0.2", shell=None)))
        for _ in range(150)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    statuses = [answer.status_code for answer in answers]
    assert len(statuses) == 150
    assert set(statuses) <= {200, 429}, {
        answer.text for answer in answers if answer.status_code not in (200, 429)
    }
    assert statuses.count(200) >= 16


def test_a_long_command_holds_up_nobody(opened: Open, session: Session) -> None:
    slow = opened()
    threads = [
        threading.Thread(target=slow.execute, args=("sleep 2",), kwargs={"shell": None}) for _ in range(10)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    began = time.monotonic()
    assert session.output("echo quick") == "quick\n"
    assert time.monotonic() - began < 1
    for thread in threads:
        thread.join(20)


def test_a_client_that_hangs_up_does_not_stop_its_command(stack: Stack, session: Session) -> None:
    with contextlib.suppress(requests.RequestException):
        requests.post(
            f"{stack.url}/v1/sessions/{session.id}/execute",
            json={"command": "sleep 1; touch finished", "shell": None},
            headers={"Authorization": f"Bearer {stack.key}"},
            timeout=0.3,
        )
    time.sleep(1.3)
    assert session.output("ls finished; rm finished") == "finished\n"


def test_the_log_has_a_line_for_each_request_and_neither_key_nor_command(
    stack: Stack, session: Session
) -> None:
    answer = session.execute("echo a-very-private-thing")
    request_id = answer.headers["X-Request-Id"]
    deadline = time.monotonic() + 5
    while request_id not in stack.log("web") and time.monotonic() < deadline:
        time.sleep(0.05)
    text = stack.log("web") + stack.log("keeper")
    assert request_id in text and session.id in text
    assert "a-very-private-thing" not in text
    assert stack.key not in text and stack.key[20:] not in text
