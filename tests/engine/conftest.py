"""Sessions over plain HTTP, for tests of what the SDK would hide."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from plain import Open, Session, open_in, opening
from stack import Stack


@pytest.fixture
def opened(stack: Stack) -> Iterator[Open]:
    with opening(stack) as open_one:
        yield open_one


@pytest.fixture(scope="module")
def session(stack: Stack) -> Iterator[Session]:
    """One for all tests of a module: none of them may harm it."""
    one = open_in(stack)
    yield one
    assert one.output("echo unharmed") == "unharmed\n"
    one.close()
