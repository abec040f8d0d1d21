"""Writing a file as a whole, and replacing a text in one."""

from __future__ import annotations

import contextlib
import os
import stat
from contextlib import contextmanager
from typing import Iterator

from . import entries
from .directories import make_parents, unmake
from .drafts import Draft
from .entries import Facts
from .files import Files, named
from .paths import Spot, opened, reopened, spotted
from .protocol import Head
from .refused import Refused
from .transfers import Line

_NEW_FILE = 0o644
_LARGEST_EDITED = 8 << 20  # it is held in memory, and what becomes of it beside it
_LARGEST_RESULT = 16 << 20
_PATIENCE = 20.0


def write(files: Files, head: Head, line: Line) -> None:
    """Everything that can be refused is, before the peer sends its bytes; the condition counts at the end."""
    with files.touched(), _ready(files, head) as spot:
        _check(spot, head)
        with Draft(spot) as draft:
            line.begin({})
            room = head["room"] if spot.path.startswith(files.roots.home + b"/") else None
            _take(line, draft, int(head["limit"]), room)
            entry, new = _put(files, spot, draft, head)
    line.end({"entry": entry, "new": new})


@contextmanager
def _ready(files: Files, head: Head) -> Iterator[Spot]:
    """The place for it, its directories made if need be, and unmade if nothing comes of it."""
    path = named(head)
    made = make_parents(files.roots, path) if head["parents"] is True else []
    try:
        with spotted(files.roots, path, follow=True) as spot:
            yield spot
            made.clear()
    finally:
        unmake(made)


def _take(line: Line, draft: Draft, limit: int, room: int | None) -> None:
    taken = 0
    while True:
        piece = line.take()
        if piece is None:
            return
        taken += len(piece)
        if taken > limit:
            raise Refused("too_large")
        if room is not None and taken > room:
            raise Refused("disk_full")
        draft.write(piece)


def _check(spot: Spot, head: Head) -> os.stat_result | None:
    """What is there now, if it may be replaced."""
    there = entries.status_of(spot)
    if head["create"] is True and there is not None:
        raise Refused("already_exists")
    if head["match"] is not None and (there is None or not _matches(there, head["match"])):
        raise Refused("precondition_failed")
    if there is not None:
        entries.must_be_file(there)
    return there


def _matches(there: os.stat_result, tags: list[str]) -> bool:
    return "*" in tags or entries.etag(there) in tags


def _put(files: Files, spot: Spot, draft: Draft, head: Head) -> tuple[Facts, bool]:
    with _alone(files):
        there = _check(spot, head)
        mode = head["mode"]
        if mode is None:
            mode = _NEW_FILE if there is None else stat.S_IMODE(there.st_mode) & 0o777
        about = draft.publish(int(mode), replace=head["create"] is not True)
    return entries.facts(spot.path, about), there is None


@contextmanager
def _alone(files: Files) -> Iterator[None]:
    if not files.replacing.acquire(timeout=_PATIENCE):
        raise Refused("operation_timeout")
    try:
        yield
    finally:
        files.replacing.release()


def edit(files: Files, head: Head) -> Head:
    """Replace an exact text. One at a time: the whole file is held in memory meanwhile."""
    old, new = (str(head[name]).encode("utf-8", "replace") for name in ("old", "new"))
    with _alone(files), files.touched(), spotted(files.roots, named(head), follow=True) as spot:
        with opened(files.roots, spot.path, follow=False) as place:
            before = os.fstat(place.fd)
            entries.must_be_file(before)
            content = _content(reopened(place, os.O_RDONLY))
        count = _count(content, old, head["all"] is True)
        if len(content) + count * (len(new) - len(old)) > _LARGEST_RESULT:
            raise Refused("too_large")
        with Draft(spot) as draft:
            draft.write(content.replace(old, new))
            there = entries.status_of(spot)
            if there is None or entries.etag(there) != entries.etag(before):
                raise Refused("file_changed")
            about = draft.publish(stat.S_IMODE(before.st_mode) & 0o777, replace=True)
    return {"ok": True, "replacements": count, "entry": entries.facts(spot.path, about)}


def _content(file: int) -> bytes:
    with contextlib.closing(os.fdopen(file, "rb", buffering=0)) as opened_file:
        content = opened_file.read(_LARGEST_EDITED + 1) or b""
    if len(content) > _LARGEST_EDITED:
        raise Refused("too_large")
    return content


def _count(content: bytes, old: bytes, every: bool) -> int:
    count = content.count(old)
    if not count:
        raise Refused("text_not_found")
    if count > 1 and not every:
        raise Refused("text_not_unique", count=count)
    return count
