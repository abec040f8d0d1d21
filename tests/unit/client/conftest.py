"""Clients of a scripted server, and nothing of the person who runs the tests."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sandbox_client import SandboxClient
from sdk_wire import KEY, Wire


@pytest.fixture(autouse=True)
def no_credentials_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """No test reads the credentials or the proxies of the person who runs it."""
    for name in ("SANDBOX_URL", "SANDBOX_API_KEY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def wire() -> Iterator[Wire]:
    server = Wire()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def connect(wire: Wire) -> Iterator[Callable[..., SandboxClient]]:
    """Makes clients of the wire, and closes their connections after the test."""
    made: list[SandboxClient] = []

    def make(**options: Any) -> SandboxClient:
        made.append(SandboxClient(**{"url": wire.url, "api_key": KEY, **options}))
        return made[-1]

    yield make
    for client in made:
        client._transport.close()


@pytest.fixture
def sandbox(connect: Callable[..., SandboxClient]) -> SandboxClient:
    return connect()


@pytest.fixture
def free_port() -> int:
    """A port where nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
