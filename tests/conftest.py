"""One server for all tests that need no settings of their own, and a sandbox for each test that wants one.

No engine fails these tests; it does not skip them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sandbox_client import SandboxClient
from stack import Stack, running


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    with running() as server:
        yield server


@pytest.fixture
def sandbox(stack: Stack) -> Iterator[SandboxClient]:
    with stack.client() as client:
        yield client
