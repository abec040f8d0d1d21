"""The script that searches files for a text or a pattern, line by line, and writes what it found to stdout.

It gives up by itself when time is up, also in the midst of a pattern that would take for ever: Python's
matching engine lets signals through.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator

from .globs import BadPattern, Glob
from .paths import Place, opened, reopened
from .refused import Refused
from .tool import Said, path_of, roots_of, run, say, told
from .walking import Found, Moved, walk

_LARGEST_FILE = 8 << 20
_MEMORY = 160 << 20  # what a file's lines or a pattern may take before it is given up, Python included
_SNIFFED = 8 << 10
_LONGEST_LINE = 5 * 100  # characters
_BEFORE_MATCH = 100  # characters of a long line that are shown before what was found in it
_MOST_TOLD = 1 << 20  # characters of all that is found
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class _TimeIsUp(Exception):
    pass


@dataclass(frozen=True)
class Wish:
    column: Callable[[str], int]  # where in a line it is, or -1
    may_hold: Callable[[bytes], bool]  # whether a file is worth being looked at line by line
    wanted: Callable[[bytes], bool]
    context: int
    limit: int


@dataclass
class Results:
    rows: list[Any] = field(default_factory=list)
    size: int = 0
    searched: int = 0
    skipped: int = 0
    truncated: bool = False
    full: bool = False


def main() -> None:
    run(_search)


def _search(asked: Said) -> Said:
    wish = _wish(asked)
    results = Results()
    signal.signal(signal.SIGALRM, _time_is_up)
    with suppress(OSError, ValueError):  # gVisor knows few limits
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    with opened(roots_of(asked), path_of(asked)) as place:
        say({"ok": True})
        signal.setitimer(signal.ITIMER_REAL, asked["seconds"])
        try:
            _search_all(place, wish, results)
        except (_TimeIsUp, Moved):
            results.truncated = True
        signal.setitimer(signal.ITIMER_REAL, 0)
    results.rows.sort(key=lambda row: row[:2])
    for row in results.rows:
        _write(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
    return {name: getattr(results, name) for name in ("searched", "skipped", "truncated")}


def _time_is_up(*_: object) -> None:
    raise _TimeIsUp


def _wish(asked: Said) -> Wish:
    column, may_hold = (_pattern if asked["regex"] else _text)(asked["pattern"], asked["ignore_case"])
    return Wish(column, may_hold, _wanted(asked["glob"]), asked["context"], asked["limit"])


def _pattern(pattern: str, ignore_case: bool) -> tuple[Callable[[str], int], Callable[[bytes], bool]]:
    try:
        search = re.compile(pattern, re.IGNORECASE if ignore_case else 0).search
    except (re.error, RecursionError, OverflowError, ValueError) as exc:
        raise Refused("invalid_pattern") from exc

    def column(line: str) -> int:
        match = search(line)
        return match.start() if match else -1

    return column, lambda data: True


def _text(text: str, ignore_case: bool) -> tuple[Callable[[str], int], Callable[[bytes], bool]]:
    if ignore_case:
        return _pattern(re.escape(text), ignore_case)
    sought = text.encode("utf-8", "replace")
    return lambda line: line.find(text), lambda data: sought in data


def _wanted(glob: str | None) -> Callable[[bytes], bool]:
    """One without a slash is about the name, wherever the file lies."""
    if glob is None:
        return lambda path: True
    try:
        pattern = Glob(glob if "/" in glob else f"**/{glob}")
    except BadPattern as exc:
        raise Refused("invalid_glob") from exc
    return lambda path: pattern.matches(path.decode("utf-8", "surrogateescape"))


def _search_all(place: Place, wish: Wish, results: Results) -> None:
    seen = os.fstat(place.fd)
    if not stat.S_ISDIR(seen.st_mode):
        if not stat.S_ISREG(seen.st_mode):
            raise Refused("not_a_regular_file")
        _search_file(lambda: reopened(place, os.O_RDONLY), place.path, seen, wish, results)
        return
    for found in walk(place.fd, lambda found: found.name != b".git"):
        if found.stat is None or not stat.S_ISREG(found.stat.st_mode) or not wish.wanted(found.path):
            continue
        path = place.path.rstrip(b"/") + b"/" + found.path
        _search_file(_opener(found), path, found.stat, wish, results)
        if results.full:
            return


def _opener(found: Found) -> Callable[[], int]:
    return lambda: os.open(found.name, _READ, dir_fd=found.directory)


def _search_file(
    open_it: Callable[[], int], path: bytes, seen: os.stat_result, wish: Wish, results: Results
) -> None:
    data = _content(open_it) if seen.st_size <= _LARGEST_FILE else None
    if data is None or b"\0" in data[:_SNIFFED]:
        results.skipped += 1
        return
    results.searched += 1
    if wish.may_hold(data):
        try:
            _search_lines(data, path, wish, results)
        except MemoryError:
            results.truncated = True


def _search_lines(data: bytes, path: bytes, wish: Wish, results: Results) -> None:
    lines = data.decode("utf-8", "replace").split("\n")
    if not lines[-1]:
        lines.pop()  # what follows the last newline is no line
    for number, column in _matches(lines, wish):
        if len(results.rows) >= wish.limit or results.size > _MOST_TOLD:
            results.truncated = results.full = True
            return
        begin = max(0, number - wish.context)
        before = [_cut(line) for line in lines[begin:number]]
        after = [_cut(line) for line in lines[number + 1 : number + 1 + wish.context]]
        text = _cut(lines[number], column)
        results.rows.append([told(path), number + 1, column + 1, text, before, after])
        results.size += len(path) + sum(map(len, (text, *before, *after)))


def _content(open_it: Callable[[], int]) -> bytes | None:
    """None for what cannot be read, is no file any more, or has become too large."""
    try:
        file = open_it()
    except OSError:
        return None
    with os.fdopen(file, "rb", buffering=0) as opened_file:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        try:
            data = opened_file.read(_LARGEST_FILE + 1) or b""
        except OSError:
            return None
    return data if len(data) <= _LARGEST_FILE else None


def _matches(lines: list[str], wish: Wish) -> Iterator[tuple[int, int]]:
    for number, line in enumerate(lines):
        column = wish.column(line)
        if column >= 0:
            yield number, column


def _cut(line: str, column: int = 0) -> str:
    """As much of a line as is shown: from its start, or from a little before what was found far in it."""
    begin = 0 if column < _LONGEST_LINE - _BEFORE_MATCH else column - _BEFORE_MATCH
    return line[begin : begin + _LONGEST_LINE].rstrip("\r")


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
