"""When a container dies the next call answers at once and names the cause: no hanging, no 500."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import requests
from expect import ended, eventually, problem
from plain import Open, Session
from stack import Stack, docker

AT_ONCE = 15.0  # seconds; what hangs takes longer than that


def timed(work: Callable[[], requests.Response]) -> requests.Response:
    began = time.monotonic()
    answer = work()
    assert time.monotonic() - began < AT_ONCE
    return answer


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        (["kill"], "killed"),
        (["kill", "-s", "KILL"], "killed"),
        (["stop"], "engine_stopped"),
        (["rm", "-f"], "lost"),
    ],
    ids=" ".join,
)
def test_a_container_ended_from_outside_is_told_with_its_cause(
    opened: Open, how: list[str], cause: str
) -> None:
    session = opened()
    session.output("true")
    docker(*how, session.container)
    ended(timed(lambda: session.execute("true")), cause)
    ended(timed(session.get), cause)
    ended(timed(session.close), cause)


def test_a_running_command_learns_of_the_death_at_once(opened: Open) -> None:
    session = opened()
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(session.execute("sleep 60", timeout=60)))
    thread.start()
    time.sleep(0.5)
    docker("kill", session.container)
    thread.join(AT_ONCE)
    assert answers, "it hangs"
    ended(answers[0], "killed")


def test_a_container_restarted_from_outside_is_over_too(opened: Open) -> None:
    """Its guest knows nothing of the session any more, and the caller must learn it."""
    session = opened()
    docker("restart", session.container)
    time.sleep(0.5)
    answer = timed(lambda: session.execute("true"))
    assert answer.status_code == 410, answer.text


def test_what_is_left_of_a_dead_container_is_removed(stack: Stack, opened: Open) -> None:
    session = opened()
    container, before = session.container, len(stack.directories())
    docker("kill", container)
    session.execute("true")
    assert container not in docker("ps", "-a", "--format", "{{.Names}}").split()
    assert len(stack.directories()) == before - 1


def test_a_user_whose_container_died_gets_a_new_session(opened: Open) -> None:
    first = opened(user_id="unlucky")
    docker("kill", first.container)
    ended(first.execute("true"), "killed")
    second = opened(user_id="unlucky")
    assert (second.told["status"], second.output("echo new")) == ("created", "new\n")


def test_a_user_whose_container_died_unseen_gets_a_session_that_works(opened: Open) -> None:
    """Nobody has called it since; the create itself, or the first command after it, must say so."""
    first = opened(user_id="unseen")
    docker("kill", first.container)
    second = opened(user_id="unseen")
    answer = timed(lambda: second.execute("echo works"))
    if second.id == first.id:
        ended(answer, "killed")
    else:
        assert answer.json()["output"] == "works\n"


def survives_or_is_told(session: Session, answer: requests.Response) -> None:
    """Whether the kernel took the guest or only the greedy: the caller knows which.

    While they fight for the last page the guest may be too slow for its caller, and what is run beside them
    may be taken, too, and is told so; it is not for ever.
    """
    if answer.status_code == 503:
        problem(answer, 503, "guest_unavailable")
    elif answer.status_code == 200:
        assert answer.json()["oom_killed"] is True
    answers: list[requests.Response] = []

    def is_decided() -> bool:
        answers.append(session.execute("echo alive"))
        told = answers[-1]
        return told.status_code == 410 or (told.status_code == 200 and told.json()["exit_code"] == 0)

    eventually(is_decided, seconds=60)
    assert all(one.json()["oom_killed"] for one in answers[:-1] if one.status_code == 200)
    if answers[-1].status_code == 410:
        ended(answers[-1], "oom")
        ended(timed(session.get), "oom")


def test_fifty_processes_that_lower_their_score_and_take_all_memory_are_told(opened: Open) -> None:
    session = opened(memory=64 << 20)
    greedy = (
        "import time\n"
        "for score in (0, -1000, 500, 501):\n"
        "    try: open('/proc/self/oom_score_adj', 'w').write(str(score)); break\n"
        "    except OSError: pass\n"
        "kept = []\n"
        "while True: kept.append(bytearray(1 << 20)); time.sleep(0.001)\n"
    )
    command = f"cat > greedy.py <<'END'\n{greedy}END\nfor i in $(seq 50); do python3 greedy.py & done; wait"
    survives_or_is_told(session, session.execute(command, timeout=5))


def test_a_guest_taken_by_the_kernel_for_want_of_memory_is_told_as_such(opened: Open) -> None:
    """The container's own files in memory leave no room for anybody."""
    session = opened(memory=64 << 20)
    fill = (
        "head -c 62M /dev/zero > /tmp/fill; for i in 1 2 3 4 5 6; do cat /tmp/fill > /dev/null & done; wait"
    )
    answer = session.execute(fill, timeout=4)
    if answer.status_code == 200 and not answer.json()["oom_killed"]:
        assert answer.json()["exit_code"] != 0
        return
    survives_or_is_told(session, answer)
