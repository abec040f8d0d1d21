"""Bodies that are sent in pieces: never whole in memory, and sent again only where the source can go back."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import IO, Any, Union, cast

from .errors import ConfigurationError

PIECE = 256 * 1024

Progress = Callable[[int, "int | None"], object]
Pieces = Union[Iterator[bytes], AsyncIterator[bytes]]
Sent = Union[str, bytes, bytearray, memoryview, IO[bytes], Iterable[bytes], AsyncIterable[bytes]]
Data = Union[Sent, "os.PathLike[str]"]


class Outgoing:
    """A body in pieces, and how far it was sent. `size` is None where nobody knows it beforehand.

    `again` says whether `pieces` can start anew. `progress` is told the bytes that were handed over.
    """

    def __init__(
        self,
        pieces: Callable[[], Pieces],
        size: int | None = None,
        again: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.size = size
        self._pieces = pieces
        self._again = again
        self._progress = progress
        self._begun = False
        self._done = 0

    @property
    def spent(self) -> bool:
        """It was begun, and cannot be begun again."""
        return self._begun and not self._again

    @property
    def again(self) -> bool:
        """It can be sent twice."""
        return self._again

    def begin(self) -> Pieces:
        """All of it from the start."""
        self._begun, self._done = True, 0
        self._tell()
        return self._pieces()

    def sent(self, count: int) -> None:
        """So many bytes more have been handed over."""
        self._done += count
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._done, self.size)


def outgoing(data: Sent, progress: Progress | None = None) -> bytes | Outgoing:
    """What to send for text, bytes, a binary file or pieces of bytes."""
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    if isinstance(data, AsyncIterable):
        source = data
        return Outgoing(lambda: source.__aiter__(), progress=progress)
    if hasattr(data, "read"):
        return _file(cast("IO[bytes]", data), progress)
    pieces = data
    return Outgoing(lambda: _checked(pieces), progress=progress)


def in_pieces(data: bytes) -> bytes | Outgoing:
    """What is large goes in pieces too: the network's timeouts are for one write, not for all of it."""
    if len(data) <= PIECE:
        return data
    slices = range(0, len(data), PIECE)
    return Outgoing(lambda: (data[start : start + PIECE] for start in slices), len(data), again=True)


def read_exactly(file: IO[bytes], size: int) -> Iterator[bytes]:
    """That many bytes, although the file may grow or shrink meanwhile."""
    left = size
    while left:
        piece = file.read(min(PIECE, left))
        if not piece:
            raise OSError(f"{getattr(file, 'name', 'The file')} became shorter while it was sent.")
        left -= len(piece)
        yield piece


def gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in fewer pieces: each costs a write to the network."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= PIECE:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


def _file(file: IO[bytes], progress: Progress | None) -> Outgoing:
    if not _seekable(file):
        return Outgoing(lambda: _checked(iter(lambda: file.read(PIECE), b"")), progress=progress)
    start = file.tell()
    size = max(0, file.seek(0, os.SEEK_END) - start)
    file.seek(start)

    def pieces() -> Iterator[bytes]:
        file.seek(start)
        return _checked(read_exactly(file, size))

    return Outgoing(pieces, size, again=True, progress=progress)


def _seekable(file: Any) -> bool:
    return bool(getattr(file, "seekable", lambda: False)())


def _checked(pieces: Iterable[Any]) -> Iterator[bytes]:
    for piece in pieces:
        if isinstance(piece, str):
            raise ConfigurationError("Files are sent as bytes: open in binary mode, or encode the text.")
        if piece:
            yield bytes(piece)
