"""Reading a tar from a stream: ustar, GNU's form and pax."""

from __future__ import annotations

from typing import Dict, Iterator

from .members import LONGEST_NAME, Member, Source, broken

_BLOCK = 512
_PIECE = 256 << 10
_LONGEST_EXTRA = 1 << 20
_SPARSE = b"GNU.sparse"
_WANTED = (b"path", b"linkpath", b"size", b"mtime")
_KINDS = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "hardlink",
    b"2": "symlink",
    b"5": "directory",
    b"3": "special",
    b"4": "special",
    b"6": "special",
}

Extras = Dict[bytes, bytes]


def members(source: Source) -> Iterator[tuple[Member, Iterator[bytes]]]:
    """Each with its content, which need not be read. The two blocks of zeros at the end must be there."""
    extras: Extras = {}
    while True:
        header = source.exactly(_BLOCK)
        if not any(header):
            if any(source.exactly(_BLOCK)):
                raise broken()
            return _skip_rest(source)
        _check(header)
        kind, size = header[156:157], _number(header[124:136])
        if kind in (b"L", b"K", b"x", b"g"):
            data = _extra(source, size)
            if kind in (b"L", b"K"):
                extras[b"path" if kind == b"L" else b"linkpath"] = data.partition(b"\0")[0]
            elif kind == b"x":
                extras.update(_records(data))
            continue
        member = _member(header, kind, size, extras)
        if kind == b"S":
            _skip_map(source, header)
        extras = {}
        content = source.content(member.size)
        yield member, content
        for _ in content:
            pass
        source.exactly(-member.size % _BLOCK)


def _member(header: bytes, kind: bytes, size: int, extras: Extras) -> Member:
    name, target = extras.get(b"path", _name(header)), extras.get(b"linkpath", _text(header[157:257]))
    if len(name) > LONGEST_NAME or len(target) > LONGEST_NAME:
        raise broken()
    if b"size" in extras:
        size = _decimal(extras[b"size"])
    what = _KINDS.get(kind, "unsupported")
    if what == "file" and _SPARSE in extras:
        what = "unsupported"
    if what == "file" and name.endswith(b"/"):
        what = "directory"
    if what in ("hardlink", "symlink", "directory", "special"):
        size = 0
    mtime = extras.get(b"mtime", b"").partition(b".")[0]
    when = _decimal(mtime) if mtime.isdigit() else _number(header[136:148], lenient=True)
    return Member(name, what, _number(header[100:108], lenient=True) & 0o777, when, size, target)


def _name(header: bytes) -> bytes:
    name, prefix = _text(header[:100]), _text(header[345 : 345 + 155])
    return prefix + b"/" + name if prefix and header[257:263] == b"ustar\0" else name


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _check(header: bytes) -> None:
    """The sum is what tells a header from anything else."""
    rest = header[:148] + b" " * 8 + header[156:]
    told, unsigned = _number(header[148:156]), sum(rest)
    if told != unsigned and told != unsigned - 256 * sum(byte > 127 for byte in rest):
        raise broken()


def _number(field: bytes, lenient: bool = False) -> int:
    """`lenient`: what is only decoration may be nonsense."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big") & (1 << 63) - 1
    digits = _text(field).strip(b" ")
    if digits.strip(b"01234567"):
        if lenient:
            return 0
        raise broken()
    return int(digits or b"0", 8)


def _decimal(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 18:
        raise broken()
    return int(digits)


def _extra(source: Source, size: int) -> bytes:
    if size > _LONGEST_EXTRA:
        raise broken()
    return source.exactly(size + -size % _BLOCK)[:size]


def _records(data: bytes) -> Extras:
    """pax: each record is its own length in decimal, a space, key=value and a newline."""
    found: Extras = {}
    begin = 0
    while begin < len(data):
        space = data.find(b" ", begin, begin + 20)
        end = begin + _decimal(data[begin:space])
        if space < 0 or not space < end <= len(data) or data[end - 1 : end] != b"\n":
            raise broken()
        key, _, value = data[space + 1 : end - 1].partition(b"=")
        if key in _WANTED:
            found[key] = value
        elif key.startswith(_SPARSE):
            found[_SPARSE] = b""
        begin = end
    return found


def _skip_map(source: Source, header: bytes) -> None:
    """An old sparse file may have more blocks that say where its holes are."""
    more = header[482]
    while more:
        more = source.exactly(_BLOCK)[504]


def _skip_rest(source: Source) -> None:
    while source.some(_PIECE):
        pass
