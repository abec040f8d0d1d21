"""Requests made up from the description, right and wrong: no 5xx, nothing that is not described."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fuzzing import SETTINGS, Fuzz
from stack import Stack, running

_EXAMPLES = 10


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[Stack]:
    with running(**SETTINGS) as server:
        yield server


@pytest.mark.timeout(600)
def test_no_request_that_can_be_made_up_gets_an_answer_that_is_not_described(fuzzed: Stack) -> None:
    fuzz = Fuzz(fuzzed, fuzzed.key, _EXAMPLES)
    fuzz.run()
    assert fuzz.faults == []
    assert len({label for label, _ in fuzz.answered}) > 50
    assert {200, 201, 400, 404} <= {status for _, status in fuzz.answered}


@pytest.mark.timeout(600)
def test_without_a_key_every_request_but_the_open_ones_is_refused_alike(fuzzed: Stack) -> None:
    fuzz = Fuzz(fuzzed, None, _EXAMPLES)
    fuzz.run()
    assert fuzz.faults == []
    met = {label: {status for other, status in fuzz.answered if other == label} for label, _ in fuzz.answered}
    closed = {label for label in met if not label.startswith(("describe_", "docs_", "status_"))}
    assert len(closed) > 50
    assert {label for label in closed if min(met[label]) < 400} == set()


@pytest.mark.timeout(600)
def test_the_operators_key_gets_no_answer_either_that_is_not_described(fuzzed: Stack) -> None:
    fuzz = Fuzz(fuzzed, fuzzed.admin_key, _EXAMPLES)
    fuzz.run()
    assert fuzz.faults == []
    met = {label for label, status in fuzz.answered if status < 400}
    asked = {label for label, _ in fuzz.answered if label.startswith(("admin_", "metrics_expose"))}
    # More must fit together in a new key than the description can say: with so few tries, none does.
    assert asked - met <= {"admin_keys_create"}
