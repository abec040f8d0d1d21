"""What guests tell of files, checked: every word of it is untrusted until it has been read here."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from server.guest import protocol
from server.guest_answers import MOST, number, one_of, sense

_KINDS = ("file", "directory", "symlink", "other")
_ETAG = re.compile(r"[0-9a-f-]{1,80}")  # it becomes a header
_LONGEST_PATH = 64 << 10
_EARLIEST, _LATEST = -(1 << 33), 1 << 37  # seconds; what a date can still be made of
_EVER = 1 << 96  # nanoseconds; a file's owner may set any time that the filesystem can hold


@dataclass(frozen=True)
class Entry:
    """Something in a directory. Names are bytes."""

    path: bytes
    kind: str
    size: int
    mode: int
    modified_at: float
    etag: str
    target: bytes | None


@dataclass(frozen=True)
class Page:
    """Some of a directory; `following` is where the next page begins, if there is one."""

    path: bytes
    entries: list[Entry]
    following: bytes | None


@dataclass(frozen=True)
class Edited:
    entry: Entry
    replacements: int


def entry_of(head: protocol.Head) -> Entry:
    with sense():
        return _entry(head["entry"])


def page_of(head: protocol.Head) -> Page:
    with sense():
        following = None if head["cursor"] is None else path_of(head["cursor"])
        return Page(path_of(head["path"]), [_entry(facts) for facts in _rows(head["entries"])], following)


def edited_of(head: protocol.Head) -> Edited:
    with sense():
        return Edited(_entry(head["entry"]), number(head["replacements"], 0, MOST))


def _rows(text: str) -> list[object]:
    try:
        rows = json.loads(text)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc
    if not isinstance(rows, list):
        raise ValueError("not entries")
    return rows


def _entry(facts: object) -> Entry:
    if not isinstance(facts, list):
        raise ValueError("not an entry")
    path, kind, size, mode, modified, etag, target = facts
    if not isinstance(etag, str) or not _ETAG.fullmatch(etag):
        raise ValueError("not a tag")
    return Entry(
        path_of(path),
        one_of(kind, _KINDS),
        number(size, 0, MOST),
        number(mode, 0, 0o7777),
        min(max(number(modified, -_EVER, _EVER) / 1e9, _EARLIEST), _LATEST),
        etag,
        None if target is None else path_of(target),
    )


def path_of(value: object) -> bytes:
    """A character for each byte."""
    if not isinstance(value, str) or len(value) > _LONGEST_PATH:
        raise ValueError("not a path")
    return value.encode("latin-1")
