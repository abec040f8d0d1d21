"""Asking the keeper: on a connection that is used again, and never on one that nobody listens to."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from server.errors import KeeperUnavailable
from server.keeper_client import IDLE_SECONDS, KeeperClient


class Keeper(socketserver.ThreadingUnixStreamServer):
    """Says how many connections were made, and which of them this is; may hang up on all of them."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        self.connections: list[_Connection] = []
        super().__init__(str(path), _Connection)

    def hang_up(self) -> None:
        for one in self.connections:
            with suppress(OSError):  # the other end was quicker
                one.connection.shutdown(socket.SHUT_RDWR)


class _Connection(socketserver.StreamRequestHandler):
    server: Keeper

    def handle(self) -> None:
        self.server.connections.append(self)
        number = len(self.server.connections)
        while line := self.rfile.readline():
            words = "" if json.loads(line)["verb"] == "check" else "nonsense"
            self.wfile.write(json.dumps({"ok": True, "connection": number}).encode() + words.encode() + b"\n")


@contextmanager
def listening(path: Path) -> Iterator[Keeper]:
    with Keeper(path) as keeper:
        threading.Thread(target=keeper.serve_forever, daemon=True).start()
        try:
            yield keeper
        finally:
            keeper.shutdown()
            keeper.hang_up()
    path.unlink()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keeper.sock"


@pytest.fixture
def client(path: Path) -> Iterator[KeeperClient]:
    with KeeperClient(path) as client:
        yield client


def asked(client: KeeperClient) -> int:
    """On which connection the answer came."""
    return int(client.check()["connection"])


def test_one_request_after_the_other_goes_over_one_connection(client: KeeperClient, path: Path) -> None:
    with listening(path):
        assert [asked(client) for _ in range(3)] == [1, 1, 1]


def test_a_keeper_that_was_restarted_is_found_again_unnoticed(client: KeeperClient, path: Path) -> None:
    for _ in range(2):
        with listening(path):
            assert [asked(client), asked(client)] == [1, 1]
    with pytest.raises(KeeperUnavailable):
        client.check()


def test_a_connection_that_the_keeper_may_let_go_of_is_not_used_again(path: Path) -> None:
    times = iter([1000.0, 1000.0 + IDLE_SECONDS - 1, 2000.0])
    with listening(path), KeeperClient(path, lambda: next(times)) as client:
        assert [asked(client), asked(client)] == [1, 2]


def test_a_connection_on_which_nonsense_was_said_is_not_used_again(client: KeeperClient, path: Path) -> None:
    with listening(path):
        with pytest.raises(KeeperUnavailable):
            client.leaks()
        assert asked(client) == 2
