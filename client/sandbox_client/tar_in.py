"""Unpacks a tar that comes from a sandbox, whose program may have written every byte of it to do harm.

Python's own `tarfile` believes the sizes in its headers and reads so much into memory; this reads a bounded
piece at a time. Nothing is written outside a directory that was made for it:

- Names with "..", absolute ones and those too long or deep are refused, and the archive with them.
- Links are made at the very end, so that nothing is written through one. One that could lead outside is
  left out: only those are made that go up, at the beginning alone, to a directory that was unpacked, and
  then down. No chain of such links leads outside, because each starts in a real directory.
- FIFOs, devices and the like are left out, and so are setuid and setgid bits.
"""

from __future__ import annotations

import contextlib
import os
import tarfile
from collections.abc import Generator
from typing import IO

from .file_errors import InvalidArchive

BLOCK = tarfile.BLOCKSIZE
REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
WITHOUT_DATA = (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
TOLD = (b"path", b"linkpath", b"size")
MOST_TOLD = 1 << 20  # bytes of an extended header
MOST_LINKS = 16 << 20  # bytes of names of links, kept until the end
MOST_SKIPPED = 1000  # names told of what was left out
LONGEST_PATH = 4096
DEEPEST = 256
LATEST = 2**33  # seconds; what is beyond fits into no file system
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)

Step = Generator[None, bytes, None]
Parts = tuple[str, ...]


class Unpacker:
    """Takes an archive in pieces of any size. `root` is a new, empty directory that nobody else writes to."""

    def __init__(self, root: str, most_bytes: int | None = None) -> None:
        self.files = self.directories = self.bytes = self.skipped_count = 0
        self.skipped: list[str] = []
        self.ended = False
        self._root = root
        self._most_bytes = most_bytes
        self.links: list[tuple[Parts, str]] = []
        self._links_size = self._taken = 0
        self._buffer = bytearray()
        self._members = self._read()
        next(self._members)

    def feed(self, data: bytes) -> None:
        self._members.send(data)

    def close(self) -> None:
        """Make the links, or raise if the end is missing. What was half written is closed either way."""
        self._members.close()
        if not self.ended:
            raise InvalidArchive("The archive breaks off before its end.")
        for parts, target in self.links:
            try:
                os.symlink(target, self._path(parts))
            except FileExistsError:
                self.skip(parts)

    def _read(self) -> Step:
        told: dict[str, str] = {}
        while True:
            block = yield from self._take(BLOCK)
            if not block.strip(b"\0"):
                break
            info = _header(block)
            if info.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE):
                said = yield from self._told(info)
                told.update(_pax(said) if info.type == tarfile.XHDTYPE else {})
            elif info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
                said = yield from self._told(info)
                name = "path" if info.type == tarfile.GNUTYPE_LONGNAME else "linkpath"
                told[name] = _text(said.rstrip(b"\0"))
            else:
                yield from self._member(info, told)
                told = {}
        self.ended = True
        while True:
            yield  # what follows the end is padding

    def _member(self, info: tarfile.TarInfo, told: dict[str, str]) -> Step:
        parts = _parts(told.get("path", info.name))
        target = told.get("linkpath", info.linkname)
        size = _size(told.get("size", info.size))
        self._count(BLOCK + (size if info.type in REGULAR else 0))
        if info.type in REGULAR and parts:
            yield from self._file(parts, size, info)
        elif info.type == tarfile.DIRTYPE:
            self._directory(parts)
        elif info.type == tarfile.SYMTYPE and parts:
            self._link_later(parts, target)
        elif info.type == tarfile.LNKTYPE and parts:
            self._hard_link(parts, _parts(target))
        elif info.type == tarfile.GNUTYPE_SPARSE or not parts:
            raise InvalidArchive(f"The archive has a member that cannot be unpacked: {info.name!r}.")
        else:
            self.skip(parts)
            if info.type not in WITHOUT_DATA:
                yield from self._pass_over(_padded(size))

    def _file(self, parts: Parts, size: int, info: tarfile.TarInfo) -> Step:
        with self._new_file(parts, info.mode) as file:
            left = size
            while left:
                piece = yield from self._some(left)
                file.write(piece)
                left -= len(piece)
                self.bytes += len(piece)
        self.files += 1
        seconds = min(max(0, int(info.mtime)), LATEST)
        os.utime(self._path(parts), (seconds, seconds))
        yield from self._pass_over(_padded(size) - size)

    def _count(self, size: int) -> None:
        """Every member counts, empty ones too: an archive must not go on for ever."""
        self._taken += size
        if self._most_bytes is not None and self._taken > self._most_bytes:
            raise InvalidArchive(f"The archive takes more than {self._most_bytes} bytes.")

    def _new_file(self, parts: Parts, mode: int) -> IO[bytes]:
        path = self._room_for(parts)
        return open(os.open(path, NEW_FILE, (mode & 0o777) | 0o600), "wb")

    def _room_for(self, parts: Parts) -> str:
        """The path of a new file, in directories that are there. The last of a name holds."""
        self._make(parts[:-1])
        path = self._path(parts)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        except (IsADirectoryError, PermissionError) as exc:  # the latter where macOS says it so
            raise InvalidArchive(f"The archive has a file and a directory by one name: {parts}.") from exc
        return path

    def _directory(self, parts: Parts) -> None:
        self._make(parts)
        self.directories += bool(parts)

    def _make(self, parts: Parts) -> None:
        try:
            os.makedirs(self._path(parts), exist_ok=True)
        except (FileExistsError, NotADirectoryError) as exc:
            raise InvalidArchive(f"The archive has a file and a directory by one name: {parts}.") from exc

    def _link_later(self, parts: Parts, target: str) -> None:
        if not stays_inside(len(parts) - 1, target):
            return self.skip(parts)
        self._links_size += len(target) + sum(map(len, parts)) + BLOCK
        if self._links_size > MOST_LINKS:
            raise InvalidArchive("The archive has too many links.")
        self._make(parts[:-1])
        self.links.append((parts, target))

    def _hard_link(self, parts: Parts, original: Parts) -> None:
        if original == parts or not os.path.isfile(self._path(original)):
            return self.skip(parts)
        os.link(self._path(original), self._room_for(parts))
        self.files += 1

    def skip(self, parts: Parts) -> None:
        """Leave it out, and tell."""
        self.skipped_count += 1
        if len(self.skipped) < MOST_SKIPPED:
            self.skipped.append("/".join(parts))

    def _path(self, parts: Parts) -> str:
        return os.path.join(self._root, *parts)

    def _told(self, info: tarfile.TarInfo) -> Generator[None, bytes, bytes]:
        if not 0 <= info.size <= MOST_TOLD:
            raise InvalidArchive("The archive has a header that is too long.")
        self._count(BLOCK + info.size)
        data = yield from self._take(_padded(info.size))
        return data[: info.size]

    def _take(self, count: int) -> Generator[None, bytes, bytes]:
        while len(self._buffer) < count:
            self._buffer += yield
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _some(self, most: int) -> Generator[None, bytes, bytes]:
        """At least a byte."""
        while not self._buffer:
            self._buffer += yield
        return (yield from self._take(min(most, len(self._buffer))))

    def _pass_over(self, count: int) -> Step:
        while count:
            count -= len((yield from self._some(count)))


def stays_inside(depth: int, target: str) -> bool:
    """Whether a link, so many directories deep, goes up at the beginning alone, and not too far."""
    names = [name for name in target.split("/") if name not in ("", ".")]
    ups = next((number for number, name in enumerate(names) if name != ".."), len(names))
    plain = bool(target) and not target.startswith("/") and "\0" not in target and _portable(target)
    return plain and len(target) <= LONGEST_PATH and ups <= depth and ".." not in names[ups:]


def _parts(name: str) -> Parts:
    """The names on the way to a member."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    safe = not name.startswith("/") and ".." not in parts and "\0" not in name and _portable(name)
    if not safe or len(parts) > DEEPEST or len(name) > LONGEST_PATH:
        raise InvalidArchive(f"The archive has a member with a name that is not safe: {name[:200]!r}.")
    return parts


def _portable(name: str) -> bool:
    return os.sep == "/" or not set(name) & set("\\:")


def _header(block: bytes) -> tarfile.TarInfo:
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as exc:
        raise InvalidArchive(f"The archive is broken ({exc}).") from exc


def _pax(data: bytes) -> dict[str, str]:
    """What matters of records like `30 path=some/name`, each as long as it says and ended by a newline."""
    found, start = {}, 0
    while start < len(data):
        digits, space, _ = data[start : start + 20].partition(b" ")
        end = start + int(digits) if space and digits.isdigit() else start
        key, sign, value = data[start + len(digits) + 1 : max(start, end - 1)].partition(b"=")
        if not sign or not start < end <= len(data):
            raise InvalidArchive("The archive has a header that cannot be read.")
        if key in TOLD:
            found[_text(key)] = _text(value)
        start = end
    return found


def _size(said: str | int) -> int:
    size = int(said) if isinstance(said, int) or said.isdecimal() else -1
    if size < 0:
        raise InvalidArchive("The archive has a member whose size cannot be read.")
    return size


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
