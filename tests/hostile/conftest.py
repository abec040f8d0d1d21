"""A server with small limits, an attacker and a neighbour. Every attack meets the same three."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from invariants import Neighbour, Session, Tenant
from stack import Stack, running


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    settings = {
        "SANDBOX_MEMORY": "256m",
        "SANDBOX_MEMORY_MAX": "512m",
        "SANDBOX_PROCESSES": "64",
        "SANDBOX_CPUS": "1",
        "SANDBOX_DISK": "100m",
        "SANDBOX_TIMEOUT": "5",
        "SANDBOX_FAILURE_LIMIT": "100000/minute",  # test_hostile_keys.py has a server of its own for this
    }
    with running(**settings) as server:
        yield server


@pytest.fixture(scope="session")
def neighbour(stack: Stack) -> Iterator[Neighbour]:
    tenant = Tenant(stack, stack.new_key("bystander"))
    yield Neighbour(tenant.open())
    tenant.close_all()


@pytest.fixture
def attacker(stack: Stack) -> Iterator[Tenant]:
    tenant = Tenant(stack, stack.key)
    yield tenant
    tenant.close_all()


@pytest.fixture
def session(attacker: Tenant) -> Session:
    return attacker.open()
