"""What the readers of both formats give, and where the bytes come from."""

from __future__ import annotations

from typing import Iterator, NamedTuple

from ..refused import Refused

MOST_MEMBERS = 100_000
LONGEST_NAME = 64 << 10


class Member(NamedTuple):
    """`kind` is file, directory, symlink, hardlink, or else the reason why it cannot be unpacked."""

    name: bytes
    kind: str
    mode: int
    mtime: int
    size: int = 0
    target: bytes = b""


def broken() -> Refused:
    return Refused("invalid_archive")


class Source:
    """Bytes that come in pieces, asked for by the number. More than `limit` in all is too large."""

    def __init__(self, pieces: Iterator[bytes], limit: int) -> None:
        self._pieces = pieces
        self._limit = limit
        self._held = memoryview(b"")

    def some(self, most: int) -> bytes:
        """At least one byte, unless there are no more."""
        while not self._held:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._limit -= len(piece)
            if self._limit < 0:
                raise Refused("too_large")
            self._held = memoryview(piece)
        taken, self._held = self._held[:most], self._held[most:]
        return bytes(taken)

    def exactly(self, size: int) -> bytes:
        """For what is small."""
        data = bytearray()
        while len(data) < size:
            piece = self.some(size - len(data))
            if not piece:
                raise broken()
            data += piece
        return bytes(data)

    def content(self, size: int) -> Iterator[bytes]:
        while size:
            piece = self.some(size)
            if not piece:
                raise broken()
            size -= len(piece)
            yield piece
