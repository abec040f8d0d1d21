"""The files of a sandbox, for both clients: `sandbox.files`."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import IO, TYPE_CHECKING, Any, cast

from . import contents, paths
from .commands import said
from .connection import Ask
from .contents import Place, ask_about
from .file_errors import FileNotFound, NotADirectory
from .file_infos import (
    Edited,
    FileEvent,
    FileInfo,
    RemotePath,
    SearchResult,
    edited,
    file_info,
    search_result,
)
from .outgoing import PIECE, Data, outgoing
from .twofold import call, iteration
from .watching import changes

if TYPE_CHECKING:
    from typing import Literal

LONG_TIME = 300.0  # the server may work so long on a whole tree
PAGE = 1000

FileInfos = list[FileInfo]  # in the class `list` is a method


class FileOperations:
    """The files of a sandbox, as its own user sees them.

    A relative path is below /workspace; /tmp and the read-only /data are there too. Paths may be text, bytes,
    Path objects, or a FileInfo or Artifact. What goes wrong is a FileError, and what Python raises for files
    of its own: `except FileNotFoundError` works.
    """

    def __init__(self, place: Place) -> None:
        self._place = place

    @call
    async def write(
        self,
        path: RemotePath,
        data: Data,
        *,
        mode: int | str | None = None,
        create_only: bool = False,
        if_match: str | FileInfo | None = None,
        parents: bool = True,
    ) -> FileInfo:
        """Write text, bytes, a binary file object, pieces of bytes, or the local file of a Path.

        A file is replaced as a whole. `create_only=True` raises FileExists where there is one; `if_match` is
        the FileInfo or etag of the one to replace, and raises PreconditionFailed where it is another by now.
        """
        query: dict[str, Any] = {} if mode is None else {"mode": mode_text(mode)}
        if not parents:
            query["parents"] = "false"
        headers = {"If-None-Match": "*"} if create_only else {}
        if if_match is not None:
            headers["If-Match"] = _quoted(if_match)
        if not isinstance(data, os.PathLike):
            return await contents.write(self._place, path, outgoing(data), query, headers)
        apart = self._place.connection.wire.apart
        file = cast("IO[bytes]", await apart(partial(open, data, "rb")))
        try:
            return await contents.write(self._place, path, outgoing(file), query, headers)
        finally:
            await apart(file.close)

    @call
    async def read(self, path: RemotePath) -> bytes:
        """The whole file."""
        found = bytearray()
        async for piece in contents.read(self._place, path):
            found += piece
        return bytes(found)

    @call
    async def read_text(self, path: RemotePath, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The whole file as text."""
        return b"".join([piece async for piece in contents.read(self._place, path)]).decode(encoding, errors)

    @iteration
    async def read_stream(
        self, path: RemotePath, *, start: int = 0, end: int | None = None, chunk_size: int = PIECE
    ) -> AsyncGenerator[bytes, None]:
        """The file in pieces, from byte `start` to before byte `end`.

        A connection that breaks is made anew. Raises FileChanged if the file is another by then.
        """
        pieces = contents.read(self._place, path, start, end)
        try:
            async for piece in pieces:
                for first in range(0, len(piece), chunk_size):
                    yield piece[first : first + chunk_size]
        finally:
            await pieces.aclose()

    @call
    async def list(self, path: RemotePath = ".", depth: int = 1, glob: str | None = None) -> FileInfos:
        """What is in a directory, sorted by path; with `depth` also below, with `glob` only what matches.

        A glob like "**/*.py" is held against the path below the directory.
        """
        return [info async for info in entries(self._place, path, depth, glob)]

    @iteration
    def iterate(
        self, path: RemotePath = ".", depth: int = 1, glob: str | None = None
    ) -> AsyncGenerator[FileInfo, None]:
        """The same one by one, for directories that are large."""
        return entries(self._place, path, depth, glob)

    @call
    async def stat(self, path: RemotePath, follow: bool = False) -> FileInfo:
        """What there is at this path: a link itself, or with `follow=True` what it leads to."""
        return await contents.stat(self._place, path, follow)

    @call
    async def exists(self, path: RemotePath) -> bool:
        """Whether there is something at this path, be it a link that leads nowhere."""
        try:
            await contents.stat(self._place, path, follow=False)
        except (FileNotFound, NotADirectory):
            return False
        return True

    @call
    async def mkdir(
        self, path: RemotePath, *, parents: bool = True, mode: int | str | None = None
    ) -> FileInfo:
        """Make a directory, and those above it. One that is there already is fine."""
        body = {**paths.fields(path=path), "parents": parents}
        if mode is not None:
            body["mode"] = mode_text(mode)
        return file_info(await self._ask(path, Ask("POST", "/files/mkdir", body, safe=True)))

    @call
    async def move(self, source: RemotePath, destination: RemotePath, *, overwrite: bool = False) -> FileInfo:
        """Give it another name. Raises FileExists if that is taken, unless `overwrite=True`."""
        body = {**paths.fields(source=source, destination=destination), "overwrite": overwrite}
        ask = Ask("POST", "/files/move", body, work_time=LONG_TIME)
        return file_info(await ask_about(self._place, ask, source, destination))

    @call
    async def copy(
        self,
        source: RemotePath,
        destination: RemotePath,
        *,
        overwrite: bool = False,
        recursive: bool = True,
    ) -> FileInfo:
        """Copy a file, or a directory with all that is in it, to another name."""
        body: dict[str, Any] = paths.fields(source=source, destination=destination)
        body.update(overwrite=overwrite, recursive=recursive)
        ask = Ask("POST", "/files/copy", body, work_time=LONG_TIME)
        return file_info(await ask_about(self._place, ask, source, destination))

    @call
    async def delete(self, path: RemotePath, recursive: bool = False) -> None:
        """Delete a file, an empty directory, or with `recursive=True` all that is in it too."""
        query = {"path": paths.raw(path), **({"recursive": "true"} if recursive else {})}
        await self._ask(path, Ask("DELETE", "/files", query=query, work_time=LONG_TIME))

    @call
    async def search(
        self,
        pattern: str,
        path: RemotePath = ".",
        *,
        glob: str | None = None,
        regex: bool = False,
        ignore_case: bool = False,
        context: int = 0,
        limit: int = 200,
    ) -> SearchResult:
        """The lines in which a text, or with `regex=True` a regular expression, is found."""
        body = {"pattern": pattern, **paths.fields(path=path), **said(glob=glob)}
        body.update(regex=regex, ignore_case=ignore_case, context=context, limit=limit)
        ask = Ask("POST", "/files/search", body, work_time=LONG_TIME, safe=True)
        return search_result(await self._ask(path, ask))

    @call
    async def edit(self, path: RemotePath, old: str, new: str, replace_all: bool = False) -> Edited:
        """Replace a text that is in the file once, or with `replace_all=True` wherever it is.

        Raises TextNotFound, or TextNotUnique, and then has changed nothing.
        """
        body = {**paths.fields(path=path), "old": old, "new": new, "replace_all": replace_all}
        return edited(await self._ask(path, Ask("POST", "/files/edit", body)))

    @iteration
    def watch(self, path: RemotePath = ".", recursive: bool = False) -> AsyncGenerator[FileEvent, None]:
        """Changes in a directory, or with `recursive=True` also below, as they happen.

        The first event is a "start": what happens after it is seen. A connection that breaks is made anew,
        and what may have been missed is told as an "overflow".
        """
        return changes(self._place, path, recursive)

    @call
    async def url(
        self,
        path: RemotePath,
        for_: Literal["download", "upload"] = "download",
        expires_in: float = 3600,
        mode: int | str | None = None,
    ) -> str:
        """An address for one download (GET) or one upload (PUT) of this file, good without a key."""
        body = {**paths.fields(path=path), "for": for_, "expires_in": expires_in}
        if mode is not None:
            body["mode"] = mode_text(mode)
        answer = await self._ask(path, Ask("POST", "/files/urls", body, safe=True))
        url = str(answer.get("url"))
        return self._place.connection.wire.url + url if url.startswith("/") else url

    async def _ask(self, path: RemotePath, ask: Ask) -> dict[str, Any]:
        return await ask_about(self._place, ask, path)


async def entries(
    place: Place, path: RemotePath, depth: int, glob: str | None
) -> AsyncGenerator[FileInfo, None]:
    """What is in a directory, page after page."""
    query: dict[str, Any] = {"path": paths.raw(path), "depth": depth, "limit": PAGE, **said(glob=glob)}
    while True:
        page: Mapping[str, Any] = await ask_about(place, Ask("GET", "/files", query=query), path)
        for entry in page.get("entries") or ():
            yield file_info(entry)
        if not page.get("next_cursor"):
            return
        query["cursor"] = page["next_cursor"]


def mode_text(mode: int | str) -> str:
    """Permissions as the server takes them: 0o755 is "0755"."""
    return mode if isinstance(mode, str) else f"{mode:04o}"


def _quoted(etag: str | FileInfo) -> str:
    text = etag.etag if isinstance(etag, FileInfo) else etag
    return text if text.startswith('"') else f'"{text}"'
