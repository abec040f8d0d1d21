"""Leases and quotas, on a server whose sessions live for seconds. The tests share the waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from expect import ended, problem
from plain import Session, open_in
from stack import Stack, docker, running

AGE = 12
REAPED = 7  # the reaper looks every five seconds


@dataclass(frozen=True)
class Aging:
    stack: Stack
    began: float
    idle: Session
    used: Session
    busy: Session
    kept: Session

    def until(self, seconds: float) -> None:
        """Waits until so many seconds after the sessions were opened, using one of them all the while."""
        while time.monotonic() < self.began + seconds:
            if time.monotonic() < self.began + AGE - 2:
                assert self.kept.output("echo used") == "used\n"
            time.sleep(0.3)


def await_nothing(stack: Stack) -> None:
    """Until the reaper has been by: all sessions are over."""
    deadline = time.monotonic() + REAPED
    while stack.containers() and time.monotonic() < deadline:
        time.sleep(0.1)


@pytest.fixture(scope="module")
def aging() -> Iterator[Aging]:
    with running(SANDBOX_AGE_MAX=str(AGE), SANDBOX_SESSIONS_MAX="4") as stack:
        kept = open_in(stack, timeout=5)
        began = time.monotonic()
        idle, used, busy = (open_in(stack, timeout=2) for _ in range(3))
        used.output("true")
        yield Aging(stack, began, idle, used, busy, kept)
        await_nothing(stack)


def test_the_quota_is_told_and_nothing_is_opened_above_it(aging: Aging) -> None:
    answer = aging.stack.call("POST", "/create_session")
    body = problem(answer, 429, "too_many_sessions")
    assert (body["limit"], body["retryable"], "Retry-After" in answer.headers) == (4, True, True)
    assert len(aging.stack.containers()) == 4


def test_a_running_command_keeps_its_session_beyond_the_lease(aging: Aging) -> None:
    answer = aging.busy.execute("sleep 3; echo done", timeout=4)
    assert (answer.status_code, answer.json()["output"]) == (200, "done\n")


def test_an_idle_session_ends_with_its_lease_and_says_so(aging: Aging) -> None:
    aging.until(3.5)
    ended(aging.idle.get(), "expired")
    ended(aging.idle.execute("true"), "expired")
    ended(aging.idle.close(), "expired")


def test_a_session_that_was_used_ends_its_lease_after_the_last_use(aging: Aging) -> None:
    """Not after the time that the command was allowed to take."""
    aging.until(5)
    ended(aging.used.get(), "expired")


def test_an_expired_session_is_removed_without_anybody_asking(aging: Aging) -> None:
    aging.until(2 + REAPED)
    names = docker("ps", "-a", "--format", "{{.Names}}").split()
    assert aging.idle.container not in names
    assert len(aging.stack.containers()) == len(aging.stack.directories()) <= 2


def test_a_session_in_use_outlives_its_lease(aging: Aging) -> None:
    aging.until(AGE - 3)
    assert aging.kept.output("echo alive") == "alive\n"


def test_a_session_ends_at_its_greatest_age_even_when_it_is_used(aging: Aging) -> None:
    told = aging.kept.get().json()
    assert told["expires_at"] <= time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + AGE))
    aging.until(AGE + 0.5)
    ended(aging.kept.execute("true"), "expired")


def test_extending_cannot_exceed_the_greatest_age(aging: Aging) -> None:
    aging.until(AGE + 1)
    session = open_in(aging.stack, timeout=2)
    longer = aging.stack.call("POST", f"/v1/sessions/{session.id}/extend", json={"timeout": 3600}).json()
    assert longer["expires_at"] < time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + AGE + 1))
    session.close()
