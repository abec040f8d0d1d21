"""Reading a zip from a file: its directory first, of which nothing is believed that can be checked."""

from __future__ import annotations

import calendar
import os
import stat
import struct
import zlib
from typing import Iterator, NamedTuple

from ..refused import Refused
from .compressed import inflated
from .members import LONGEST_NAME, MOST_MEMBERS, Member, broken

_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_LONGEST_COMMENT = 0xFFFF
_FULL = 0xFFFFFFFF
_PIECE = 256 << 10
_FARTHEST = 1 << 62
_ENCRYPTED, _UTF8 = 0x01, 0x800
_STORED, _DEFLATED = 0, 8
_UNIX = 3
_ZIP64, _TIMES = 0x0001, 0x5455


class _Record(NamedTuple):
    """What the directory says of one member."""

    name: bytes
    system: int
    flags: int
    method: int
    mtime: int
    crc: int
    packed: int
    size: int
    attributes: int
    at: int


def members(file: int, limit: int) -> Iterator[tuple[Member, Iterator[bytes]]]:
    """Each with its content. Too many, or too much by their own word, is refused before the first."""
    begin, end, shift = _directory(file)
    total = 0
    for count, record in enumerate(_records(file, begin, end), 1):
        total += record.size
        if count > MOST_MEMBERS or total > limit:
            raise Refused("too_large")
    for record in _records(file, begin, end):
        kind = _kind(record)
        content = _content(file, record, shift)
        target = b""
        if kind == "symlink":
            target = b"".join(content) if record.size <= LONGEST_NAME else b""
        mode = record.attributes >> 16 & 0o777 if record.system == _UNIX else 0
        mode = mode or (0o755 if kind == "directory" else 0o644)
        yield Member(record.name, kind, mode, record.mtime, record.size, target), content


def _directory(file: int) -> tuple[int, int, int]:
    """Where the directory begins and ends, and by how much all positions are shifted."""
    length = os.fstat(file).st_size
    tail_at = max(0, length - _LONGEST_COMMENT - _END.size)
    tail = _read(file, tail_at, length - tail_at)
    found = tail.rfind(b"PK\x05\x06")
    if found < 0 or len(tail) - found < _END.size:
        raise broken()
    end_at = tail_at + found
    _, _, _, _, _, size, at, _ = _END.unpack_from(tail, found)
    locator_at = end_at - _LOCATOR.size
    if locator_at >= 0 and _read(file, locator_at, _LOCATOR.size).startswith(b"PK\x06\x07"):
        # What is before the zip shifts it: the record lies right before its locator, wherever that says.
        end_at = locator_at - _END64.size
        if end_at < 0 or not (end64 := _read(file, end_at, _END64.size)).startswith(b"PK\x06\x06"):
            raise broken()
        size, at = _END64.unpack(end64)[8:10]
    begin = end_at - size
    if begin < 0 or at > begin:
        raise broken()
    return begin, end_at, begin - at


def _records(file: int, begin: int, end: int) -> Iterator[_Record]:
    while begin < end:
        fixed = _CENTRAL.unpack(_read(file, begin, _CENTRAL.size))
        magic, made, _, flags, method, clock, day, crc, packed, size = fixed[:10]
        lengths, attributes, at = fixed[10:13], fixed[15], fixed[16]
        if magic != b"PK\x01\x02":
            raise broken()
        rest = _read(file, begin + _CENTRAL.size, sum(lengths))
        name, extra = rest[: lengths[0]], rest[lengths[0] : lengths[0] + lengths[1]]
        extras = _extras(extra)
        size, packed, at = _wide(extras.get(_ZIP64, b""), size, packed, at)
        mtime = _mtime(clock, day, extras.get(_TIMES, b""))
        system = made >> 8
        if system != _UNIX and not flags & _UTF8:
            name = name.decode("cp437").encode()
        yield _Record(name, system, flags, method, mtime, crc, packed, size, attributes, at)
        begin += _CENTRAL.size + len(rest)


def _extras(extra: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(extra):
        tag, size = struct.unpack_from("<HH", extra, at)
        at += 4 + size
        if tag in (_ZIP64, _TIMES):
            found[tag] = extra[at - size : at]
    return found


def _wide(extra: bytes, *values: int) -> list[int]:
    """Values that did not fit are in the extra field, in this order."""
    wide = list(values)
    missing = [place for place, value in enumerate(wide) if value == _FULL]
    if len(extra) >= 8 * len(missing):
        for place, value in zip(missing, struct.unpack_from(f"<{len(missing)}Q", extra)):
            wide[place] = value
    return wide


def _kind(record: _Record) -> str:
    kind = stat.S_IFMT(record.attributes >> 16) if record.system == _UNIX else 0
    if record.name.endswith(b"/") or kind == stat.S_IFDIR:
        return "directory"
    if record.flags & _ENCRYPTED or record.method not in (_STORED, _DEFLATED):
        return "unsupported"
    if kind == stat.S_IFLNK:
        return "symlink"
    return "file" if kind in (0, stat.S_IFREG) else "special"


def _content(file: int, record: _Record, shift: int) -> Iterator[bytes]:
    """Checked to be as long as was said, and to have the sum that was said."""
    at = record.at + shift
    local = _LOCAL.unpack(_read(file, at, _LOCAL.size))
    if local[0] != b"PK\x03\x04":
        raise broken()
    at += _LOCAL.size + local[9] + local[10]
    pieces = _packed(file, at, record.packed)
    crc, left = 0, record.size
    for piece in inflated(pieces) if record.method == _DEFLATED else pieces:
        crc, left = zlib.crc32(piece, crc), left - len(piece)
        if left < 0:
            raise broken()
        yield piece
    if left or crc != record.crc:
        raise broken()


def _packed(file: int, at: int, size: int) -> Iterator[bytes]:
    while size:
        piece = _read(file, at, min(size, _PIECE))
        at, size = at + len(piece), size - len(piece)
        yield piece


def _mtime(clock: int, day: int, extra: bytes) -> int:
    """To the second and in UTC where that is told; else as if the clock that it was told by showed UTC."""
    if len(extra) >= 5 and extra[0] & 1:
        return int.from_bytes(extra[1:5], "little")
    when = (1980 + (day >> 9), day >> 5 & 15, day & 31, clock >> 11, clock >> 5 & 63, clock % 32 * 2, 0, 0, 0)
    try:
        return max(0, calendar.timegm(when))
    except (OverflowError, ValueError):
        return 0


def _read(file: int, at: int, size: int) -> bytes:
    data = os.pread(file, size, at) if 0 <= at < _FARTHEST else b""
    if len(data) != size:
        raise broken()
    return data
