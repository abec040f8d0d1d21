"""Writing a zip to a stream: what is small is compressed first, of what is large the sizes follow."""

from __future__ import annotations

import os
import struct
import time
import zlib
from typing import Callable, Iterator, NamedTuple

LONGEST_NAME = 0xFFFF
_SMALL = 1 << 20
_LARGE = 1 << 31  # from here on sizes take eight bytes
_MOST = 0xFFFFFFFF
_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_END = struct.Struct("<4s4H2LH")
_STORED, _DEFLATED = 0, 8
_SIZES_FOLLOW, _UTF8 = 0x08, 0x800
_UNIX = 3 << 8
_VERSION = 45  # the first that knows large files
_FIRST_YEAR, _LAST_YEAR = 1980, 2107


class _Member(NamedTuple):
    name: bytes
    seen: os.stat_result
    flags: int
    method: int
    at: int

    @property
    def extra(self) -> bytes:
        """Its time in UTC and to the second, which the field of the same purpose cannot say."""
        return struct.pack("<HHBL", 0x5455, 5, 1, min(max(0, int(self.seen.st_mtime)), _MOST))


class _Sums(NamedTuple):
    crc: int
    packed: int
    size: int


class ZipOut:
    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._out = write
        self._at = 0
        self._count = 0
        self._directory = bytearray()

    def directory(self, name: bytes, seen: os.stat_result) -> None:
        self._whole(name + b"/", seen, b"", _STORED)

    def link(self, name: bytes, seen: os.stat_result, target: bytes) -> None:
        self._whole(name, seen, target, _STORED)

    def file(self, name: bytes, seen: os.stat_result, size: int, content: Iterator[bytes]) -> None:
        """`content` gives at most `size` bytes."""
        if size <= _SMALL:
            self._whole(name, seen, b"".join(content), _DEFLATED)
            return
        member = self._member(name, seen, _DEFLATED, _SIZES_FOLLOW)
        wide = size >= _LARGE
        self._begin(member, _Sums(0, 0, 0), struct.pack("<HHQQ", 1, 16, 0, 0) if wide else b"")
        sums = self._deflated(content)
        self._write(struct.pack("<4sLQQ" if wide else "<4sLLL", b"PK\x07\x08", *sums))
        self._note(member, sums)

    def end(self) -> None:
        at, size = self._at, len(self._directory)
        self._write(bytes(self._directory))
        count = min(self._count, 0xFFFF)
        if count == 0xFFFF or size >= _MOST or at >= _MOST:
            locator = _LOCATOR.pack(b"PK\x06\x07", 0, self._at, 1)
            counts = (self._count, self._count)
            self._write(_END64.pack(b"PK\x06\x06", 44, _UNIX | _VERSION, _VERSION, 0, 0, *counts, size, at))
            self._write(locator)
        self._write(_END.pack(b"PK\x05\x06", 0, 0, count, count, min(size, _MOST), min(at, _MOST), 0))

    def _whole(self, name: bytes, seen: os.stat_result, data: bytes, method: int) -> None:
        packed = _deflate(data) if method == _DEFLATED else data
        if len(packed) >= len(data):
            method, packed = _STORED, data
        member = self._member(name, seen, method, 0)
        sums = _Sums(zlib.crc32(data), len(packed), len(data))
        self._begin(member, sums, b"")
        self._write(packed)
        self._note(member, sums)

    def _member(self, name: bytes, seen: os.stat_result, method: int, flags: int) -> _Member:
        return _Member(name, seen, flags | _name_flag(name), method, self._at)

    def _begin(self, member: _Member, sums: _Sums, wide: bytes) -> None:
        packed, size = (_MOST, _MOST) if wide else (sums.packed, sums.size)
        when = _dos_time(member.seen.st_mtime)
        extra = wide + member.extra
        fields = (_VERSION, member.flags, member.method, *when, sums.crc, packed, size)
        self._write(_LOCAL.pack(b"PK\x03\x04", *fields, len(member.name), len(extra)) + member.name + extra)

    def _deflated(self, content: Iterator[bytes]) -> _Sums:
        engine = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, -15)
        crc = size = 0
        began = self._at
        for piece in content:
            crc, size = zlib.crc32(piece, crc), size + len(piece)
            self._write(engine.compress(piece))
        self._write(engine.flush())
        return _Sums(crc, self._at - began, size)

    def _note(self, member: _Member, sums: _Sums) -> None:
        values = (sums.size, sums.packed, member.at)
        large = [value for value in values if value >= _MOST]
        extra = struct.pack(f"<HH{len(large)}Q", 1, 8 * len(large), *large) if large else b""
        size, packed, at = (min(value, _MOST) for value in values)
        extra += member.extra
        self._directory += _CENTRAL.pack(
            b"PK\x01\x02",
            _UNIX | _VERSION,
            _VERSION,
            member.flags,
            member.method,
            *_dos_time(member.seen.st_mtime),
            sums.crc,
            packed,
            size,
            len(member.name),
            len(extra),
            0,
            0,
            0,
            (member.seen.st_mode & 0o170777) << 16,
            at,
        )
        self._directory += member.name + extra
        self._count += 1

    def _write(self, data: bytes) -> None:
        self._at += len(data)
        self._out(data)


def _deflate(data: bytes) -> bytes:
    engine = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, -15)
    return engine.compress(data) + engine.flush()


def _name_flag(name: bytes) -> int:
    try:
        name.decode()
    except UnicodeDecodeError:
        return 0
    return _UTF8


def _dos_time(mtime: float) -> tuple[int, int]:
    when = time.gmtime(min(max(0, int(mtime)), _MOST))
    year = min(max(when.tm_year, _FIRST_YEAR), _LAST_YEAR) - _FIRST_YEAR
    clock = when.tm_hour << 11 | when.tm_min << 5 | when.tm_sec // 2
    return clock, year << 9 | when.tm_mon << 5 | when.tm_mday
