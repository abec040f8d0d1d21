"""Listing a directory, page by page, sorted by path.

Nothing is kept between two pages: a cursor names the path to go on at. A directory is never held as a whole
either, only the next names of it, so the memory of one with a million names is that of one with thousands.
There is no recursion, and no path is resolved twice: each level is a descriptor.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import stat
import time
from typing import Iterator, NamedTuple

from . import entries
from .entries import Facts
from .files import Files, named, told
from .globs import BadPattern, Glob, State
from .paths import Place, opened
from .protocol import Head
from .refused import Refused

_HELD = 16 << 10  # names of all levels together, about
_FEWEST = 256
_PAGE_BYTES = 1 << 20  # of the answer that a caller gets
_SOFT_SECONDS = 1.2  # after which a page is as full as it is
_HARD_SECONDS = 20.0
_ANY: State = frozenset({0})  # without a pattern
_LOOK = 256  # names between two looks at the clock


class _Wish(NamedTuple):
    depth: int
    glob: Glob | None
    limit: int
    at: bytes
    deadline: float


class _Level:
    """A directory being walked. Its keys are names, and, for what is in a directory, names with a slash.

    Sorted so, the paths of the whole walk are sorted.
    """

    def __init__(self, fd: int, prefix: bytes, state: State, deep: bool, at: bytes) -> None:
        self.fd = fd
        self.prefix = prefix
        self.state = state
        self.deep = deep
        self.at = at  # the first key that is wanted; once used, the last that was taken
        self.keys: list[bytes] = []
        self.begun = False
        self.exhausted = False


def listed(files: Files, head: Head) -> Head:
    with files.touched(), opened(files.roots, named(head)) as place:
        if not stat.S_ISDIR(os.fstat(place.fd).st_mode):
            raise Refused("not_a_directory")
        rows, cursor = _page(place, _wish(head))
    entries_text = json.dumps(rows)  # one text, which waits in little room until there is time to read it
    return {"ok": True, "path": told(place.path), "entries": entries_text, "cursor": cursor and told(cursor)}


def _wish(head: Head) -> _Wish:
    try:
        glob = Glob(str(head["glob"])) if head["glob"] else None
    except BadPattern as exc:
        raise Refused("invalid_glob") from exc
    deadline = time.monotonic() + _HARD_SECONDS
    return _Wish(int(head["depth"]), glob, int(head["limit"]), named(head, "at"), deadline)


def _page(place: Place, wish: _Wish) -> tuple[list[Facts], bytes | None]:
    rows: list[Facts] = []
    size = 0
    soft = 0.0
    fd = _directory(b"/proc/self/fd/%d" % place.fd)
    stack = [_Level(fd, b"", wish.glob.start if wish.glob else _ANY, wish.depth > 1, wish.at)]
    try:
        while stack:
            level = stack[-1]
            key = _next_key(stack, wish)
            if key is None:
                os.close(stack.pop().fd)
                continue
            soft = soft or time.monotonic() + _SOFT_SECONDS  # a first look at a large directory is no delay
            position = level.prefix + key
            full = len(rows) >= wish.limit or size >= _PAGE_BYTES or time.monotonic() > soft
            if full and position > wish.at:
                return rows, position
            if key.endswith(b"/"):
                _descend(stack, key, wish)
                continue
            with contextlib.suppress(FileNotFoundError):  # it went meanwhile
                row = entries.below(level.fd, key, place.path.rstrip(b"/") + b"/" + position)
                rows.append(row)
                size += entries.length(row)
    finally:
        for level in stack:
            os.close(level.fd)
    return rows, None


def _descend(stack: list[_Level], key: bytes, wish: _Wish) -> None:
    level = stack[-1]
    prefix = level.prefix + key
    try:
        fd = _directory(key[:-1], level.fd)
    except OSError:
        return  # it went, or may not be read: its name was told
    state = _after(wish.glob, level.state, key[:-1])
    at = wish.at[len(prefix) :] if wish.at.startswith(prefix) else b""
    stack.append(_Level(fd, prefix, state, wish.depth > len(stack) + 1, at))


def _directory(path: bytes, inside: int | None = None) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(path, flags if inside is None else flags | os.O_NOFOLLOW, dir_fd=inside)


def _next_key(stack: list[_Level], wish: _Wish) -> bytes | None:
    level = stack[-1]
    if not level.keys and not level.exhausted:
        held = sum(len(one.keys) for one in stack)
        room = max(_FEWEST, (_HELD - held) // 2)
        level.keys = heapq.nsmallest(room, _wanted(level, wish))
        level.exhausted = len(level.keys) < room
        level.begun = True
        level.at = level.keys[-1] if level.keys else level.at
        level.keys.reverse()
    return level.keys.pop() if level.keys else None


def _wanted(level: _Level, wish: _Wish) -> Iterator[bytes]:
    """The keys from `at` on, in any order. What is before them costs next to nothing."""
    at, begun, glob = level.at, level.begun, wish.glob
    for entry in _scanned(level.fd, wish.deadline):
        name, inside = entry.name, entry.name + b"/"
        shown = name > at or (name == at and not begun)
        entered = level.deep and (inside > at or (not begun and at.startswith(inside)))
        if not shown and not entered:
            continue
        state = _after(glob, level.state, name)
        if shown and (glob is None or glob.accepts(state)):
            yield name
        if entered and state and entry.is_dir(follow_symlinks=False):
            yield inside


def _after(glob: Glob | None, state: State, name: bytes) -> State:
    return state if glob is None else glob.step(state, name.decode("utf-8", "surrogateescape"))


def _scanned(fd: int, deadline: float) -> Iterator[os.DirEntry[bytes]]:
    with os.scandir(b"/proc/self/fd/%d" % fd) as found:
        for number, entry in enumerate(found):
            if number % _LOOK == 0 and time.monotonic() > deadline:
                raise Refused("operation_timeout")
            yield entry
