"""Leases and quotas, on a server whose sessions live for seconds.

Each test waits for what must happen, not for a moment: a slow machine makes them longer, not wrong.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from expect import ended, eventually, problem
from plain import Session, open_in
from stack import Stack, running

AGE = 25
SHORT = 2


@dataclass(frozen=True)
class Aging:
    """A server, and a session that was opened with it."""

    stack: Stack
    oldest: Session
    opened_at: float


@pytest.fixture(scope="module")
def aging() -> Iterator[Aging]:
    with running(SANDBOX_AGE_MAX=str(AGE), SANDBOX_SESSIONS_MAX="4") as stack:
        opened_at = time.monotonic()
        yield Aging(stack, open_in(stack, timeout=3600), opened_at)


@pytest.fixture
def stack(aging: Aging) -> Stack:
    return aging.stack


def test_the_quota_is_told_and_nothing_is_opened_above_it(stack: Stack) -> None:
    others = [open_in(stack, timeout=3600) for _ in range(3)]
    answer = stack.call("POST", "/create_session")
    body = problem(answer, 429, "too_many_sessions")
    assert (body["limit"], body["used"], body["allowed"], body["retryable"]) == ("sessions", 4, 4, True)
    assert int(answer.headers["Retry-After"]) > 0
    assert len(stack.containers()) == 4
    for session in others:
        session.close()


def test_an_idle_session_ends_with_its_lease_and_says_so(stack: Stack) -> None:
    idle = open_in(stack, timeout=SHORT)
    eventually(lambda: idle.get().status_code == 410)
    ended(idle.get(), "expired")
    ended(idle.execute("true"), "expired")
    ended(idle.close(), "expired")


def test_a_session_that_was_used_ends_its_lease_after_the_last_use(stack: Stack) -> None:
    """Not after the time that the command was allowed to take."""
    used = open_in(stack, timeout=SHORT)
    used.execute("true", timeout=3600)
    eventually(lambda: used.get().status_code == 410)
    ended(used.get(), "expired")


def test_an_expired_session_is_removed_without_anybody_asking(stack: Stack) -> None:
    idle = open_in(stack, timeout=SHORT)
    container = idle.container
    eventually(lambda: container not in stack.container_names())
    assert len(stack.containers()) == len(stack.directories())
    ended(idle.get(), "expired")


def test_a_running_command_keeps_its_session_beyond_the_lease(stack: Stack) -> None:
    busy = open_in(stack, timeout=2 * SHORT)
    answer = busy.execute(f"sleep {3 * SHORT}; echo done", timeout=4 * SHORT)
    assert (answer.status_code, answer.json()["output"]) == (200, "done\n")
    busy.close()


def test_a_session_in_use_outlives_its_lease(stack: Stack) -> None:
    lease = 3 * SHORT
    kept = open_in(stack, timeout=lease)
    until = time.monotonic() + lease + 1
    while time.monotonic() < until:
        assert kept.output("echo used") == "used\n"
        time.sleep(0.3)
    kept.close()


def test_extending_cannot_exceed_the_greatest_age(stack: Stack) -> None:
    session = open_in(stack, timeout=4 * SHORT)
    longer = stack.call("POST", f"/v1/sessions/{session.id}/extend", json={"timeout": 3600}).json()
    assert longer["expires_at"] < time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + AGE + 1))
    session.close()


def test_a_session_ends_at_its_greatest_age_even_when_it_is_used(aging: Aging) -> None:
    eventually(lambda: aging.oldest.execute("true").status_code == 410)
    ended(aging.oldest.execute("true"), "expired")
    assert time.monotonic() - aging.opened_at >= AGE - 1
