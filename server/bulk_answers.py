"""What guests tell of archives, searches and watched directories, checked: all of it is untrusted before."""

from __future__ import annotations

import json
from dataclasses import dataclass

from server.file_answers import path_of
from server.guest import protocol
from server.guest_answers import MOST, number, one_of, sense

_REASONS = (
    "outside",
    "link",
    "exists",
    "special",
    "unsupported",
    "invalid_name",
    "permission_denied",
    "gone",
)
_EVENTS = ("created", "modified", "deleted", "moved", "attributes", "overflow", "end")
_LONGEST_TEXT = 1 << 9
_LONGEST_ROW = 256 << 10
_MOST_AROUND = 20


@dataclass(frozen=True)
class Packed:
    """What an archive will hold: so many entries and bytes of files, and how many are left out of it."""

    path: bytes
    entries: int
    size: int
    skipped: int


@dataclass(frozen=True)
class Unpacked:
    path: bytes
    files: int
    directories: int
    size: int
    skipped: list[tuple[bytes, str]]
    skipped_count: int


@dataclass(frozen=True)
class Match:
    path: bytes
    line: int
    column: int
    text: str
    before: list[str]
    after: list[str]


@dataclass(frozen=True)
class Found:
    matches: list[Match]
    searched: int
    skipped: int
    truncated: bool


@dataclass(frozen=True)
class Change:
    """Something that happened in a watched directory; `old` is where it was before it was moved."""

    kind: str
    path: bytes
    old: bytes | None
    directory: bool


def packed_of(head: protocol.Head) -> Packed:
    with sense():
        counts = (number(head[name], 0, MOST) for name in ("entries", "bytes", "skipped"))
        return Packed(path_of(head["path"]), *counts)


def place_of(head: protocol.Head) -> bytes:
    """The real path of what was named."""
    with sense():
        return path_of(head["path"])


def unpacked_of(path: bytes, head: protocol.Head) -> Unpacked:
    with sense():
        files, directories, size, count = (
            number(head[name], 0, MOST) for name in ("files", "directories", "bytes", "skipped_count")
        )
        skipped = [(path_of(name), one_of(reason, _REASONS)) for name, reason in head["skipped"]]
        return Unpacked(path, files, directories, size, skipped, count)


def found_of(rows: bytes, head: protocol.Head, most: int) -> Found:
    """A match a line: what is parsed at once is small, whatever the guest says."""
    with sense():
        lines = rows.split(b"\n", most + 1)
        if lines.pop() or len(lines) > most or max(map(len, lines), default=0) > _LONGEST_ROW:
            raise ValueError("too much was found")
        matches = [_match(_parsed(line)) for line in lines]
        searched, skipped = (number(head[name], 0, MOST) for name in ("searched", "skipped"))
        return Found(matches, searched, skipped, head["truncated"] is True)


def changes_of(piece: bytes) -> list[Change]:
    with sense():
        return [_change(event) for event in _parsed(piece)]


def _parsed(raw: bytes) -> list[object]:
    try:
        rows = json.loads(raw.decode())
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc
    if not isinstance(rows, list):
        raise ValueError("not a list")
    return rows


def _match(row: list[object]) -> Match:
    path, line, column, text, before, after = row
    around = [_texts(before), _texts(after)]
    return Match(path_of(path), number(line, 1, MOST), number(column, 1, MOST), _text(text), *around)


def _texts(values: object) -> list[str]:
    if not isinstance(values, list) or len(values) > _MOST_AROUND:
        raise ValueError("not lines")
    return [_text(value) for value in values]


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise ValueError("not a line")
    return value.encode("utf-8", "replace").decode()


def _change(event: object) -> Change:
    if not isinstance(event, list):
        raise ValueError("not an event")
    kind, path, old, directory = event
    before = None if old is None else path_of(old)
    return Change(one_of(kind, _EVENTS), path_of(path), before, directory is True)
