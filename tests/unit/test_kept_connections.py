"""Connections that wait for their next use do not outlive their guests, nor grow without end."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from server.kept_connections import KeptConnections

Pair = tuple[socket.socket, socket.socket]


class Guests:
    """Both ends of many connections."""

    def __init__(self) -> None:
        self.ends: dict[str, Pair] = {}

    def connect(self, kept: KeptConnections, sandbox: str) -> None:
        self.ends[sandbox] = socket.socketpair()
        kept.keep(sandbox, self.ends[sandbox][0])

    def hang_up(self, sandbox: str) -> None:
        self.ends[sandbox][1].close()

    def held(self) -> set[str]:
        """Those of whose connections our end is open."""
        return {sandbox for sandbox, (ours, _) in self.ends.items() if ours.fileno() >= 0}


@pytest.fixture
def guests() -> Iterator[Guests]:
    made = Guests()
    yield made
    for pair in made.ends.values():
        for end in pair:
            end.close()


def test_a_connection_is_used_again(guests: Guests) -> None:
    kept = KeptConnections()
    guests.connect(kept, "a")
    assert kept.take("a") is guests.ends["a"][0]
    assert kept.take("a") is None


def test_those_of_guests_that_are_gone_are_let_go_though_nobody_says_so(guests: Guests) -> None:
    """As when sessions are closed through another worker; those that live are kept."""
    kept = KeptConnections()
    guests.connect(kept, "lives")
    for number in range(300):
        guests.connect(kept, str(number))
        guests.hang_up(str(number))
    assert len(guests.held()) < 10
    assert kept.take("lives") is guests.ends["lives"][0]


def test_there_are_only_so_many(guests: Guests) -> None:
    kept = KeptConnections()
    for number in range(600):
        guests.connect(kept, str(number))
    assert len(guests.held()) == 512


def test_one_that_was_looked_at_works_as_before(guests: Guests) -> None:
    kept = KeptConnections()
    guests.connect(kept, "a")
    guests.connect(kept, "b")
    connection = kept.take("a")
    assert connection is not None
    connection.settimeout(5)
    guests.ends["a"][1].sendall(b"hello")
    assert connection.recv(5) == b"hello"
