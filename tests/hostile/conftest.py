"""A server with small limits, an attacker and a neighbour. Every attack meets the same three."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from invariants import Neighbour, Session, Tenant
from stack import Stack, running

from server.keeper.doctor.kernel import SYSCTLS


@pytest.fixture(scope="session", autouse=True)
def host_as_quickstart_leaves_it() -> Iterator[None]:
    """Terminals are host-wide: the wall counts on a setting that no container option replaces."""
    setting = Path("/proc/sys/kernel/pty/max")
    least = next(least for name, least, _ in SYSCTLS if name == "kernel.pty.max")
    before = setting.read_text()
    setting.write_text(str(max(int(before), least)))
    yield
    setting.write_text(before)


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    settings = {
        "SANDBOX_MEMORY": "256m",
        "SANDBOX_MEMORY_MAX": "512m",
        "SANDBOX_PROCESSES": "64",
        "SANDBOX_CPUS": "1",
        "SANDBOX_DISK": "100m",
        "SANDBOX_TENANT_DISK": "1g",
        "SANDBOX_TIMEOUT": "5",
        "SANDBOX_UPLOADS": "64m",
        "SANDBOX_UPLOAD_LIMIT": "32m",
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
