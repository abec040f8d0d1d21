"""A connection for the length of a transfer, which has it to itself."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import Iterator

from . import protocol
from .bell import HungUp
from .refused import Refused


class Line:
    """What goes wrong on it is HungUp, never an OSError: those are the files'.

    A transfer that could begin says so first. It ends with `end`, or with a refusal; else it was broken off.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = bytearray()
        self._taking = False

    def fileno(self) -> int:
        """For those who wait for something else meanwhile."""
        return self._connection.fileno()

    def begin(self, head: protocol.Head) -> None:
        self._connection.settimeout(protocol.STALLED)
        with _line_errors():
            protocol.send(self._connection, {"ok": True, **head})

    def ask(self) -> protocol.Head:
        """One more frame from the peer, before the pieces: what it wants, now that it knows what is there."""
        with _line_errors():
            return protocol.receive(self._connection, protocol.TO_GUEST)[0]

    def give(self, data: protocol.Body | memoryview) -> None:
        with _line_errors():
            protocol.send_piece(self._connection, data)

    def take(self) -> memoryview | None:
        """The next piece, good until the one after it is taken; None when all have come."""
        self._buffer = self._buffer or bytearray(protocol.PIECE)
        self._taking = True
        with _line_errors():
            got = protocol.receive_piece(self._connection, self._buffer)
        if isinstance(got, int):
            return memoryview(self._buffer)[:got]
        self._taking = False
        if got.get("ok") is not True:
            raise HungUp  # the peer has given it up
        return None

    def end(self, head: protocol.Head | None = None) -> None:
        with _line_errors():
            protocol.send_end(self._connection, {"ok": True, **(head or {})})
        self._connection.settimeout(None)

    def refuse(self, refusal: Refused) -> None:
        """Before it begins this is an answer like any other; in the midst of it the connection is lost."""
        with _line_errors():
            protocol.send_end(self._connection, {"ok": False, "code": refusal.code, **refusal.facts})
        if self._taking:
            raise HungUp
        self._connection.settimeout(None)


@contextmanager
def _line_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, protocol.FrameError) as exc:
        raise HungUp from exc
