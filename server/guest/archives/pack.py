"""The script that packs: a file, or all that is in a directory, to stdout.

The tree is looked at first, so that what is too large or left out is told before the first byte. Then it is
read; what has become worse than was told breaks the archive off.
"""

from __future__ import annotations

import os
import stat
import zlib
from dataclasses import dataclass
from typing import Iterator, Union

from ..paths import Place, opened, reopened
from ..refused import Refused
from ..tool import Said, path_of, roots_of, run, say
from ..tool import told as shown
from ..walking import Found, walk
from .tar_out import BLOCK, TarOut
from .zip_out import LONGEST_NAME, ZipOut

_MOST_ENTRIES = 500_000
_PIECE = 256 << 10
_SMALL = 1 << 20  # what is read whole before its size is told
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

Out = Union[TarOut, ZipOut]


@dataclass
class Sums:
    entries: int = 0
    bytes: int = 0
    skipped: int = 0
    names: int = 0  # bytes that names and headers take, about


@dataclass(frozen=True)
class Job:
    place: Place
    format: str
    limit: int

    def found(self) -> Iterator[Found]:
        seen = os.fstat(self.place.fd)
        if stat.S_ISDIR(seen.st_mode):
            return walk(self.place.fd)
        if not stat.S_ISREG(seen.st_mode):
            raise Refused("not_a_regular_file")
        return iter([Found(self.place.fd, b"", os.path.basename(self.place.path), seen)])

    def packable(self, found: Found) -> bool:
        """Pipes, sockets, devices and what may not be read are left out; so is what no zip can name."""
        if found.stat is None or (self.format == "zip" and len(found.path) >= LONGEST_NAME):
            return False
        if stat.S_ISREG(found.stat.st_mode):
            return not found.name or os.access(found.name, os.R_OK, dir_fd=found.directory)
        return stat.S_ISDIR(found.stat.st_mode) or stat.S_ISLNK(found.stat.st_mode)

    def add(self, sums: Sums, found: Found, size: int) -> None:
        sums.entries += 1
        sums.bytes += size
        sums.names += BLOCK + len(found.path)
        if sums.bytes + sums.names > self.limit or sums.entries > _MOST_ENTRIES:
            raise Refused("too_large")


def main() -> None:
    run(_pack)


def _pack(asked: Said) -> Said:
    with opened(roots_of(asked), path_of(asked)) as place:
        job = Job(place, asked["format"], asked["limit"])
        told = _look(job)
        say({"ok": True, "path": shown(place.path), **vars(told)})
        return vars(_write(job, told.skipped))


def _look(job: Job) -> Sums:
    sums = Sums()
    for found in job.found():
        if not job.packable(found):
            sums.skipped += 1
        elif found.stat is not None:
            job.add(sums, found, found.stat.st_size if stat.S_ISREG(found.stat.st_mode) else 0)
    return sums


def _write(job: Job, may_skip: int) -> Sums:
    sums = Sums()
    stdout = _Stdout(compressed=job.format == "tar.gz")
    out: Out = ZipOut(stdout.write) if job.format == "zip" else TarOut(stdout.write)
    for found in job.found():
        size = _add(out, found) if job.packable(found) else None
        if size is not None:
            job.add(sums, found, size)
            continue
        sums.skipped += 1
        if sums.skipped > may_skip:
            raise Refused("file_changed")
    out.end()
    stdout.end()
    return sums


def _add(out: Out, found: Found) -> int | None:
    """How many bytes of content it has; None if it could not be packed after all."""
    seen = found.stat
    assert seen is not None, "it was found packable"
    if stat.S_ISDIR(seen.st_mode):
        out.directory(found.path, seen)
        return 0
    try:
        if stat.S_ISLNK(seen.st_mode):
            out.link(found.path, seen, os.readlink(found.name, dir_fd=found.directory))
            return 0
        file = _open(found)
    except OSError:
        return None
    try:
        return _add_file(out, found.path, file)
    finally:
        os.close(file)


def _open(found: Found) -> int:
    if not found.name:
        return reopened(Place(found.directory, found.path), os.O_RDONLY)
    return os.open(found.name, _READ, dir_fd=found.directory)


def _add_file(out: Out, path: bytes, file: int) -> int | None:
    seen = os.fstat(file)
    if not stat.S_ISREG(seen.st_mode):
        return None
    size = seen.st_size
    if size > _SMALL:
        out.file(path, seen, size, _content(file, size))
        return size
    data = b"".join(_pieces(file, size))
    out.file(path, seen, len(data), iter([data]))
    return len(data)


def _content(file: int, size: int) -> Iterator[bytes]:
    """What a file grows by meanwhile is left out; what it shrinks by cannot be made up for."""
    for piece in _pieces(file, size):
        size -= len(piece)
        yield piece
    if size:
        raise Refused("file_changed")


def _pieces(file: int, size: int) -> Iterator[bytes]:
    while size:
        piece = os.read(file, min(size, _PIECE))
        if not piece:
            return
        size -= len(piece)
        yield piece


class _Stdout:
    """Gathers what is small."""

    def __init__(self, compressed: bool) -> None:
        self._engine = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, 31) if compressed else None
        self._waiting = bytearray()

    def write(self, data: bytes) -> None:
        self._waiting += self._engine.compress(data) if self._engine else data
        if len(self._waiting) >= _PIECE:
            self._flush()

    def end(self) -> None:
        if self._engine:
            self._waiting += self._engine.flush()
        self._flush()

    def _flush(self) -> None:
        rest = memoryview(bytes(self._waiting))
        self._waiting.clear()
        while rest:
            rest = rest[os.write(1, rest) :]
