"""Writing a tar in GNU's form: names are bytes of any length, sizes of any size."""

from __future__ import annotations

import os
import stat
from typing import Callable, Iterator

BLOCK = 512
_LONGEST_NAME = 100
_LARGEST_OCTAL = 8**11
_OWNER = 1000  # a session's own number means nothing elsewhere


class TarOut:
    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write

    def directory(self, name: bytes, seen: os.stat_result) -> None:
        self._member(name + b"/", b"5", seen, 0)

    def link(self, name: bytes, seen: os.stat_result, target: bytes) -> None:
        self._member(name, b"2", seen, 0, target)

    def file(self, name: bytes, seen: os.stat_result, size: int, content: Iterator[bytes]) -> None:
        """`content` gives exactly `size` bytes, or raises."""
        self._member(name, b"0", seen, size)
        for piece in content:
            self._write(piece)
        self._write(bytes(-size % BLOCK))

    def end(self) -> None:
        self._write(bytes(2 * BLOCK))

    def _member(self, name: bytes, kind: bytes, seen: os.stat_result, size: int, target: bytes = b"") -> None:
        for text, long in ((name, b"L"), (target, b"K")):
            if len(text) > _LONGEST_NAME:
                self._write(_header(b"././@LongLink", long, 0, len(text) + 1, 0, b""))
                self._write(text + bytes(-len(text) % BLOCK or BLOCK))
        mode, mtime = stat.S_IMODE(seen.st_mode) & 0o777, int(seen.st_mtime)
        self._write(_header(name[:_LONGEST_NAME], kind, mode, size, mtime, target[:_LONGEST_NAME]))


def size_of(name: bytes, target: bytes, size: int) -> int:
    """How many bytes a member takes."""
    longs = sum(2 * BLOCK + len(text) for text in (name, target) if len(text) >= _LONGEST_NAME)
    return BLOCK + longs + size + -size % BLOCK


def _header(name: bytes, kind: bytes, mode: int, size: int, mtime: int, target: bytes) -> bytes:
    start = b"".join(
        (
            name.ljust(100, b"\0"),
            b"%07o\0%07o\0%07o\0" % (mode, _OWNER, _OWNER),
            _number(size),
            _number(max(0, mtime)),
        )
    )
    rest = kind + target.ljust(100, b"\0") + b"ustar  \0" + b"user".ljust(32, b"\0") * 2
    block = (start + b" " * 8 + rest).ljust(BLOCK, b"\0")
    return start + b"%06o\0 " % sum(block) + block[len(start) + 8 :]


def _number(value: int) -> bytes:
    if value < _LARGEST_OCTAL:
        return b"%011o\0" % value
    return b"\x80" + value.to_bytes(11, "big")
