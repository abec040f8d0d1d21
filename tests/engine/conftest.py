"""Sessions over plain HTTP, for tests of what the SDK would hide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from plain import Open, Session, open_in
from stack import Stack


@pytest.fixture
def opened(stack: Stack) -> Iterator[Open]:
    """Opens sessions, and closes them after the test."""
    made: list[Session] = []

    def open_one(**wish: Any) -> Session:
        made.append(open_in(stack, **wish))
        return made[-1]

    yield open_one
    for session in made:
        session.close()


@pytest.fixture(scope="module")
def session(stack: Stack) -> Iterator[Session]:
    """One for all tests of a module: none of them may harm it."""
    one = open_in(stack)
    yield one
    assert one.output("echo unharmed") == "unharmed\n"
    one.close()
