"""The table of executions by itself: once, counted, bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from server.guest.executions import (
    Conflict,
    Execution,
    Executions,
    Forgotten,
    TooManyExecutions,
    Unknown,
)

LIMIT = 1 << 20


@pytest.fixture
def executions(tmp_path: Path) -> Iterator[Executions]:
    made = Executions(4, LIMIT, str(tmp_path))
    yield made
    for execution in made._known.values():
        execution.log.close()


def kept_of(execution: Execution) -> int:
    return execution.log.total - sum(end - begin for begin, end in execution.log.missing)


def admit(executions: Executions, name: str, fingerprint: str = "", again: bool = False) -> Execution:
    execution, new = executions.admit(name, fingerprint, {}, again)
    assert new
    return execution


def test_a_thousand_finished_results_do_not_grow_what_is_kept(executions: Executions) -> None:
    for number in range(2000):
        execution = admit(executions, str(number))
        execution.log.add("stdout", b"x" * 100_000)
        executions.finish(execution, ({"ok": True}, b"x" * 100_000))
    assert len(executions._known) <= 1024 + 64
    kept = [one for one in executions._known.values() if one.answer is not None]
    assert 1 < len(kept) <= 64
    assert sum(len(one.answer[1]) for one in kept if one.answer) <= 4 << 20
    assert sum(kept_of(one) for one in executions._known.values()) <= 4 * LIMIT


def test_one_that_runs_for_ever_does_not_keep_the_others_known(executions: Executions) -> None:
    admit(executions, "terminal")
    for number in range(3000):
        executions.finish(admit(executions, str(number)), ({"ok": True}, b""))
    assert len(executions._known) <= 1 + 1024 + 64
    assert executions.find("terminal").status == "queued"
    with pytest.raises(Unknown):
        executions.find("0")


def test_the_newest_result_is_kept_however_large_it_is(executions: Executions) -> None:
    big = ({"ok": True}, b"x" * (5 << 20))
    executions.finish(admit(executions, "big"), big)
    assert executions.find("big").outcome() == big


def test_a_forgotten_result_is_refused_without_running_again(executions: Executions) -> None:
    for number in range(100):
        executions.finish(admit(executions, str(number)), ({"ok": True}, b""))
    found, new = executions.admit("3", "", {}, False)
    assert not new
    with pytest.raises(Forgotten):
        found.outcome()


def test_another_fingerprint_is_a_conflict(executions: Executions) -> None:
    executions.finish(admit(executions, "a", "one"), ({}, b""))
    with pytest.raises(Conflict):
        executions.admit("a", "two", {}, False)


def test_a_series_gives_the_one_that_runs_and_then_another_with_an_id_of_its_own(
    executions: Executions,
) -> None:
    first = admit(executions, "terminal", again=True)
    assert executions.admit("terminal", "", {}, True) == (first, False)
    executions.finish(first, ({}, b""))
    second = admit(executions, "terminal", again=True)
    assert (first.name, second.name) == ("terminal.1", "terminal.2")
    assert executions.find("terminal.1") is first


def test_the_number_of_a_forgotten_one_is_not_used_again(executions: Executions) -> None:
    executions.finish(admit(executions, "terminal", again=True), ({}, b""))
    for number in range(2000):
        executions.finish(admit(executions, str(number)), ({}, b""))
    assert admit(executions, "terminal", again=True).name == "terminal.2"


def test_many_at_once_have_smaller_logs(tmp_path: Path) -> None:
    executions = Executions(32, LIMIT, str(tmp_path))
    running = [admit(executions, str(number)) for number in range(10)]
    for execution in running:
        execution.log.add("stdout", bytes(2 * LIMIT))
    assert [kept_of(execution) for execution in running] == [LIMIT] * 4 + [LIMIT // 8] * 6
    for execution in running:
        execution.log.close()


def test_one_that_was_refused_gives_its_place_back_and_may_be_tried_again(executions: Executions) -> None:
    for _ in range(10):
        refused = admit(executions, "a")
        executions.refuse(refused, ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            refused.outcome()
    executions.finish(admit(executions, "a"), ({"ok": 1}, b""))


def test_one_that_somebody_was_told_about_stays_known_when_it_is_refused(executions: Executions) -> None:
    execution = admit(executions, "a")
    executions.promise(execution)
    executions.refuse(execution, ZeroDivisionError())
    assert executions.find("a").status == "ended"


def test_places_are_counted_while_they_run(executions: Executions) -> None:
    running = [admit(executions, str(number)) for number in range(4)]
    with pytest.raises(TooManyExecutions):
        executions.admit("one more", "", {}, False)
    executions.finish(running[0], ({}, b""))
    admit(executions, "one more")


def test_what_never_was_is_unknown(executions: Executions) -> None:
    with pytest.raises(Unknown):
        executions.find("nobody")


def test_what_the_caller_named_is_not_run_again_however_many_came_after(executions: Executions) -> None:
    """Long after its result is forgotten, and the table of known ones has let go of it."""
    executions.finish(admit(executions, "mine", "fingerprint"), ({"cpu_seconds": 0, "peak_memory": 0}, b""))
    for number in range(3000):
        executions.finish(admit(executions, f"{number}"), ({"cpu_seconds": 0, "peak_memory": 0}, b""))
    with pytest.raises(Forgotten):
        executions.admit("mine", "fingerprint", {}, False)
    with pytest.raises(Conflict):
        executions.admit("mine", "another", {}, False)
    assert len(executions._known) + len(executions._remembered) < 1200, "unnamed ones are not remembered"


def test_what_is_remembered_is_bounded(executions: Executions) -> None:
    for number in range(13_000):
        made = admit(executions, f"{number}", "fingerprint")
        executions.finish(made, ({"cpu_seconds": 0, "peak_memory": 0}, b""))
    assert len(executions._remembered) == 10_000


def test_what_a_result_says_beside_its_output_counts_too(executions: Executions) -> None:
    """A value of Python's may be larger than all that was printed."""
    for number in range(40):
        answer = ({"ok": True, "value": "\u00e9" * 100_000, "artifacts": []}, b"")
        executions.finish(admit(executions, str(number)), answer)
    assert 1 <= len(executions.kept()) <= 10
