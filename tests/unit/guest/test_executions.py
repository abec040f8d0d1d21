"""The table of executions by itself: once, counted, bounded."""

from __future__ import annotations

import threading

import pytest

from server.guest.executions import Conflict, Executions, Forgotten, TooManyExecutions


def test_a_thousand_finished_results_do_not_grow_what_is_kept() -> None:
    executions = Executions(4)
    for number in range(2000):
        executions.once(str(number), "", 1, lambda: ({"ok": True}, b"x" * 100_000))
    assert len(executions._known) <= 1025
    assert executions._kept_bytes <= (4 << 20)
    assert sum(known.answer is not None for known in executions._known.values()) <= 64


def test_the_newest_result_is_kept_however_large_it_is() -> None:
    executions = Executions(4)
    big = ({"ok": True}, b"x" * (5 << 20))
    executions.once("big", "", 1, lambda: big)
    assert executions.once("big", "", 1, lambda: ({}, b"")) == big


def test_a_forgotten_result_is_refused_without_running_again() -> None:
    executions = Executions(4)
    for number in range(100):
        executions.once(str(number), "", 1, lambda: ({"ok": True}, b""))
    with pytest.raises(Forgotten):
        executions.once("3", "", 1, lambda: pytest.fail("it ran again"))


def test_another_fingerprint_is_a_conflict() -> None:
    executions = Executions(4)
    executions.once("a", "one", 1, lambda: ({}, b""))
    with pytest.raises(Conflict):
        executions.once("a", "two", 1, lambda: ({}, b""))


def test_a_failed_one_gives_its_place_back_and_may_be_tried_again() -> None:
    executions = Executions(1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            executions.once("a", "", 1, lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    assert executions.once("a", "", 1, lambda: ({"ok": 1}, b"")) == ({"ok": 1}, b"")


def test_places_are_counted_while_they_run() -> None:
    executions, go, inside = Executions(1), threading.Event(), threading.Event()

    def wait() -> tuple[dict[str, object], bytes]:
        inside.set()
        go.wait(5)
        return {}, b""

    thread = threading.Thread(target=executions.once, args=("a", "", 1, wait))
    thread.start()
    inside.wait(5)
    with pytest.raises(TooManyExecutions):
        executions.once("b", "", 1, lambda: ({}, b""))
    go.set()
    thread.join(5)
    assert executions.once("b", "", 1, lambda: ({}, b"")) == ({}, b"")
