"""A directory of this machine as a tar, made while it is sent: neither whole in memory nor on disk."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

from .outgoing import read_exactly

END = bytes(2 * tarfile.BLOCKSIZE)
PERMISSIONS = 0o777
CONTENT_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def packed(root: Path) -> Iterator[bytes]:
    """All below the directory. Links are sent as links; sockets, FIFOs and devices are left out."""
    for path, name in _walk(root):
        info = _info(path, name, path.lstat())
        if info is not None and info.isreg():
            yield from _file(path, info)
        elif info is not None:
            yield _header(info)
    yield END


def packed_size(root: Path) -> int:
    """How long that will be, if nothing changes meanwhile."""
    size = len(END)
    for path, name in _walk(root):
        info = _info(path, name, path.lstat())
        if info is not None:
            size += len(_header(info)) + _padded(info.size)
    return size


def _walk(root: Path) -> Iterator[tuple[Path, str]]:
    """Everything below, parents first."""
    waiting = [(root, "")]
    while waiting:
        directory, prefix = waiting.pop()
        with os.scandir(directory) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            yield Path(entry.path), prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                waiting.append((Path(entry.path), f"{prefix}{entry.name}/"))


def _info(path: Path, name: str, about: os.stat_result) -> tarfile.TarInfo | None:
    info = tarfile.TarInfo(name)
    info.mode = stat.S_IMODE(about.st_mode) & PERMISSIONS
    info.mtime = max(0, int(about.st_mtime))
    if stat.S_ISREG(about.st_mode):
        info.size = about.st_size
    elif stat.S_ISDIR(about.st_mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(about.st_mode):
        info.type = tarfile.SYMTYPE
        info.linkname = os.readlink(path)
    else:
        return None
    return info


def _file(path: Path, info: tarfile.TarInfo) -> Iterator[bytes]:
    with open(os.open(path, CONTENT_FLAGS), "rb", buffering=0) as file:
        info.size = os.fstat(file.fileno()).st_size
        yield _header(info)
        yield from read_exactly(file, info.size)
        yield bytes(_padded(info.size) - info.size)


def _header(info: tarfile.TarInfo) -> bytes:
    # GNU's format holds any bytes as a name, without saying in which encoding.
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
