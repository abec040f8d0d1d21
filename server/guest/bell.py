"""Waiting for news, and for the end of the connection that asked for them, whichever comes first."""

from __future__ import annotations

import os
import select
from types import TracebackType


class HungUp(Exception):
    """Nobody waits for the answer any more."""


class Bell:
    """Rung by one thread to wake another. Made for one wait."""

    def __init__(self, after: int) -> None:
        self.after = after  # rung when there are more bytes than this
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def __enter__(self) -> Bell:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._read)
        os.close(self._write)

    def ring(self) -> None:
        try:
            os.write(self._write, b"!")
        except BlockingIOError:
            return  # it rings already

    def wait(self, seconds: float, peer: int) -> None:
        """Until it rings or time is up. The peer does not speak while it waits: if it does, it has gone."""
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        poll.register(peer, select.POLLIN)
        if any(fd == peer for fd, _ in poll.poll(seconds * 1000)):
            raise HungUp
