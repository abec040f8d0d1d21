"""The bytes of files, both ways: sent in pieces, and read over as many connections as it takes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, Protocol

from . import paths
from .connection import Ask, Connection
from .errors import ConfigurationError, ConnectionLost, SandboxError, UnexpectedAnswer
from .file_errors import FileChanged, FileError
from .file_infos import FileInfo, RemotePath, file_info
from .http import content
from .outgoing import Outgoing
from .retries import Holdout
from .wire import Incoming

WRITE_TIME = 60.0  # the server answers when the last byte is on its disk


class Place(Protocol):
    """Where files are: a session, or a workspace without one."""

    @property
    def connection(self) -> Connection:
        """The server's."""

    async def of(self, ask: Ask) -> Ask:
        """The same, asked of this place."""


@contextlib.contextmanager
def about(path: RemotePath, destination: RemotePath | None = None) -> Iterator[None]:
    """Errors in this block are about this path, or about these two, as Python's own of a rename are.

    Where the server says that it is the destination which is at fault, they are about that one.
    """
    try:
        yield
    except FileError as error:
        error.filename = paths.text_of(path)
        if destination is not None:
            blamed = error.extras.get("path")
            if blamed == _shown(destination) != _shown(path):
                error.filename = paths.text_of(destination)
            else:
                error.filename2 = paths.text_of(destination)
        raise


def _shown(path: RemotePath) -> str:
    """As the server shows it."""
    return paths.raw(path).decode("utf-8", "replace")


async def ask_about(place: Place, ask: Ask, *named: RemotePath) -> dict[str, Any]:
    """What the server answers to a question about paths."""
    with about(*named):
        return await place.connection.ask(await place.of(ask))


async def stat(place: Place, path: RemotePath, follow: bool) -> FileInfo:
    query = {"path": paths.raw(path), **({"follow": "true"} if follow else {})}
    return file_info(await ask_about(place, Ask("GET", "/files/stat", query=query), path))


async def write(
    place: Place,
    path: RemotePath,
    body: bytes | Outgoing,
    query: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
) -> FileInfo:
    """Write a file. Without conditions it may be sent twice, if its source can be read twice."""
    again = isinstance(body, bytes) or body.again
    ask = Ask(
        "PUT",
        "/files/content",
        query={"path": paths.raw(path), **query},
        work_time=WRITE_TIME,
        content=body,
        headers={"Content-Type": "application/octet-stream", **(headers or {})},
        safe=again and not headers,
    )
    with about(path):
        return file_info(content(await place.connection.answer(await place.of(ask))))


async def read(
    place: Place, path: RemotePath, start: int = 0, end: int | None = None
) -> AsyncGenerator[bytes, None]:
    """The bytes from `start` to before `end`. A connection that breaks is made anew, and goes on there."""
    reading = _Reading(path, start, end)
    tries = Holdout(place.connection.patience)
    while not reading.whole:
        try:
            with about(path):
                incoming = await place.connection.fetch(await place.of(reading.ask()))
            try:
                reading.begin(incoming)
                while piece := await incoming.read():
                    reading.position += len(piece)
                    tries.progress()
                    yield piece
            finally:
                await incoming.close()
            reading.finish()
        except SandboxError as error:
            pause = tries.pause(error)
            if pause is None or not reading.resumable:
                raise
            await place.connection.wire.sleep(pause)


class _Reading:
    """How far a file has been read. `end` is None until it is known."""

    def __init__(self, path: RemotePath, start: int, end: int | None) -> None:
        if start < 0 or (end is not None and end < start):
            raise ConfigurationError("start must be 0 or more, and end not before it.")
        self.position = start
        self.whole = end is not None and end <= start
        self._path = path
        self._start = start
        self._asked_end = self._end = end
        self._etag: str | None = None

    @property
    def resumable(self) -> bool:
        """Whether it can be gone on with: we know which file it was, or have nothing of it yet."""
        return self._etag is not None or self.position == self._start

    def ask(self) -> Ask:
        headers = {}
        end = self._asked_end if self._etag is None else self._end
        if self.position or end is not None:
            headers["Range"] = f"bytes={self.position}-{'' if end is None else end - 1}"
        if self._etag is not None:
            headers["If-Range"] = self._etag
        return Ask("GET", "/files/content", query={"path": paths.raw(self._path)}, headers=headers)

    def begin(self, incoming: Incoming) -> None:
        """Check that what comes goes on where we are, in the same file."""
        length = incoming.headers.get("Content-Length", "")
        if not length.isdecimal() and "Transfer-Encoding" not in incoming.headers:
            raise ConnectionLost("The connection broke in the middle of the headers.")  # which few notice
        if _first_byte(incoming) != self.position:
            if self._etag is not None:
                where = {"path": paths.text_of(self._path)}
                raise FileChanged("The file changed while it was read.", extras=where)
            raise UnexpectedAnswer("The server sent another part of the file than was asked for.")
        self._etag = self._etag or incoming.headers.get("ETag")
        self._end = self.position + int(length) if length.isdecimal() else None

    def finish(self) -> None:
        """The answer has ended: was it all?"""
        if self._end is not None and self.position < self._end:
            raise ConnectionLost("The connection broke in the middle of a file.")
        self.whole = True


def _first_byte(incoming: Incoming) -> int | None:
    if incoming.status != 206:
        return 0
    said = re.match(r"bytes (\d+)-", incoming.headers.get("Content-Range", ""))
    return int(said[1]) if said else None
