"""Files and whole directories between this machine and a sandbox, in pieces: memory stays flat."""

from __future__ import annotations

import os
import stat as modes
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import IO, Union, cast

from . import contents, paths
from .connection import Ask
from .contents import Place, about, ask_about
from .file_errors import InvalidPath, IsADirectory
from .file_infos import FileInfo, RemotePath, Transfer, transfer
from .local_files import NewFile, NewTree
from .outgoing import Outgoing, Progress, gathered, outgoing
from .tar_out import packed, packed_size
from .wire import Incoming

LocalPath = Union[str, "os.PathLike[str]"]
PACK_TIME = 120.0  # the server looks at the whole tree before the first byte
UNPACK_TIME = 600.0  # and may be busy with the last ones when it has them all
BULK = 1 << 20


async def upload(
    place: Place, local: LocalPath, remote: RemotePath | None, progress: Progress | None
) -> Transfer:
    """A file, or a directory with all that is in it. A remote path that ends in / is a directory."""
    source = Path(local)
    target = paths.text_of((source.name or ".") if remote is None else remote)
    apart = place.connection.wire.apart
    if await apart(source.is_dir):
        return await _upload_tree(place, source, target, progress)
    if target == "." or target.endswith(("/", "/.")):
        target = paths.joined(target, source.name)
    file = cast("IO[bytes]", await apart(partial(open, source, "rb")))
    try:
        info = await _upload_file(place, file, source.name, target, progress)
    finally:
        await apart(file.close)
    return Transfer(info.path, files=1, bytes=info.size)


async def download(
    place: Place,
    remote: RemotePath,
    local: LocalPath,
    progress: Progress | None,
    most_bytes: int | None,
) -> Transfer:
    """A file, or a directory with all that is in it."""
    info = await contents.stat(place, remote, follow=True)
    if info.is_directory:
        return await download_tree(place, remote, local, progress, most_bytes)
    inside = os.path.isdir(local) or os.fspath(local).endswith(os.sep)
    destination = Path(local, _local_name(remote)) if inside else Path(local)
    return await _download_file(place, remote, info, destination, progress)


async def download_tree(
    place: Place,
    remote: RemotePath,
    local: LocalPath,
    progress: Progress | None,
    most_bytes: int | None,
) -> Transfer:
    """A directory. Tried once: an archive is made anew each time, and cannot be gone on with."""
    query = {"path": paths.raw(remote), "format": "tar"}
    ask = Ask("GET", "/files/archive", query=query, work_time=PACK_TIME)
    apart = place.connection.wire.apart
    tree = await apart(lambda: NewTree(Path(local), most_bytes))
    unpacker = tree.unpacker
    try:
        with about(remote):
            incoming = await place.connection.fetch(await place.of(ask))
        total, left_out = (_number(incoming, f"X-Archive-{name}") for name in ("Bytes", "Skipped"))
        pieces = _in_bulk(_coming(incoming))
        try:
            async for piece in pieces:
                await apart(partial(unpacker.feed, piece))
                if progress is not None:
                    progress(unpacker.bytes, total)
                if unpacker.ended:
                    break
        finally:
            await pieces.aclose()
        await apart(tree.keep)
    finally:
        tree.drop()  # at once: whoever was cancelled may wait for nothing more
    counts = (unpacker.files, unpacker.directories, unpacker.bytes)
    skipped_count = unpacker.skipped_count + (left_out or 0)
    return Transfer(os.fspath(local), *counts, tuple(unpacker.skipped), skipped_count)


async def _upload_file(
    place: Place, file: IO[bytes], name: str, target: str, progress: Progress | None
) -> FileInfo:
    mode = modes.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o777
    query = {"mode": f"{mode:04o}"}
    body = outgoing(file, progress)
    try:
        return await contents.write(place, target, body, query)
    except IsADirectory:  # then into it, as cp does, if what was sent can be sent again
        if isinstance(body, Outgoing) and body.spent:
            raise
        return await contents.write(place, paths.joined(target, name), body, query)


async def _upload_tree(place: Place, source: Path, target: str, progress: Progress | None) -> Transfer:
    size = await place.connection.wire.apart(partial(packed_size, source)) if progress else None
    told = None if progress is None else _against(progress, size)
    ask = Ask(
        "PUT",
        "/files/archive",
        query={"path": paths.raw(target), "format": "tar"},
        work_time=UNPACK_TIME,
        content=Outgoing(lambda: gathered(packed(source)), again=True, progress=told),
        headers={"Content-Type": "application/x-tar"},
        safe=True,
    )
    return transfer(await ask_about(place, ask, target), target)


async def _download_file(
    place: Place, remote: RemotePath, info: FileInfo, destination: Path, progress: Progress | None
) -> Transfer:
    apart, done = place.connection.wire.apart, 0
    file = await apart(lambda: NewFile(destination, int(info.mode or "0644", 8)))
    pieces = _in_bulk(contents.read(place, remote))
    try:
        async for piece in pieces:
            await apart(partial(file.write, piece))
            done += len(piece)
            if progress is not None:
                progress(done, info.size)
        await apart(file.keep)
    finally:
        file.drop()
        await pieces.aclose()
    return Transfer(str(destination), files=1, bytes=done)


async def _coming(incoming: Incoming) -> AsyncGenerator[bytes, None]:
    try:
        while piece := await incoming.read():
            yield piece
    finally:
        await incoming.close()


async def _in_bulk(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The same bytes in larger pieces: each is handed to where it holds nobody up, which costs."""
    held = bytearray()
    try:
        async for piece in pieces:
            held += piece
            if len(held) >= BULK:
                yield bytes(held)
                held.clear()
        if held:
            yield bytes(held)
    finally:
        await pieces.aclose()


def _local_name(remote: RemotePath) -> str:
    """Its name here. The sandbox may have chosen it: on some systems / is not all that parts a path."""
    name = paths.last_name(remote)
    if os.sep != "/" and set(name) & set("\\:"):
        raise InvalidPath(f"This system cannot have a file by the name {name!r}.")
    return name


def _number(incoming: Incoming, header: str) -> int | None:
    said = incoming.headers.get(header, "")
    return int(said) if said.isdecimal() else None


def _against(progress: Progress, total: int | None) -> Callable[[int, int | None], object]:
    """Progress with a total that is a good guess, not one to send as the body's length."""
    return lambda done, _: progress(done, total)
