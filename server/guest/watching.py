"""Watching a directory for a caller: the kernel's news, gathered for a moment and told as events.

Nothing is queued here. While the peer takes nothing the kernel queues, up to its own bound, and then says
that something was lost. Files in the making are ours, not the caller's: they are not told.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
from contextlib import closing
from typing import Any, Iterator, List, NamedTuple

from . import inotify
from .bell import HungUp
from .drafts import is_fresh_name
from .files import Files, named, told
from .inotify import Inotify, News
from .paths import opened
from .protocol import PIECE, Head
from .refused import Refused
from .transfers import Line
from .watched import Tree

_GATHER = 0.05
_READS = 4  # for one batch
_MOST_BYTES = 1 << 20  # of paths in one batch
_MOST_LEAVING = 8
_GONE = inotify.DELETE_SELF | inotify.MOVE_SELF | inotify.UNMOUNT | inotify.IGNORED
_NAMELESS = re.compile(rb"#[0-9]+")  # what the kernel calls a file without a name
_INCLUDED = {"modified": ("created", "modified"), "attributes": ("created", "modified", "attributes")}

Event = List[Any]  # type, path, the path before it was moved, whether it is a directory


def watch(files: Files, head: Head, line: Line) -> None:
    """Pieces are lists of events as JSON; an empty one tells that all is well."""
    if not files.watches.acquire(blocking=False):
        raise Refused("too_many_streams")
    try:
        with files.touched(), closing(_instance()) as instance:
            _follow(files, head, line, instance)
    finally:
        files.watches.release()


def _instance() -> Inotify:
    try:
        return Inotify()
    except OSError as exc:
        if exc.errno == errno.EMFILE:
            raise Refused("too_many_streams") from exc  # the user's own programs have them all
        raise


def _follow(files: Files, head: Head, line: Line, instance: Inotify) -> None:
    with opened(files.roots, named(head)) as place:
        batch = _Batch(place.path)
        tree = Tree(files, instance, place, head["recursive"] is True, batch.add)
        path = place.path
    line.begin({"path": told(path)})
    line.ask()
    if at_once := batch.taken():
        _give(line, at_once)
    reader = _Reader(instance, line.fileno())
    while tree.root in tree:
        for news in reader.gathered(float(head["keepalive"])):
            _understand(news, tree, batch)
        if batch.leaving:
            for news in reader.gathered(_GATHER):
                _understand(news, tree, batch)
        batch.settle(tree)
        _give(line, batch.taken())
    _give(line, [["end", told(path), None, True]])
    line.end()


class _Reader:
    def __init__(self, instance: Inotify, peer: int) -> None:
        self._instance = instance
        self._peer = peer

    def gathered(self, seconds: float) -> Iterator[News]:
        """What comes within so long, and a moment after the first of it."""
        if not self._wait(seconds, self._instance.fd):
            return
        self._wait(_GATHER)
        for _ in range(_READS):
            yield from self._instance.read()

    def _wait(self, seconds: float, *fds: int) -> bool:
        poll = select.poll()
        poll.register(self._peer, select.POLLRDHUP)
        for fd in fds:
            poll.register(fd, select.POLLIN)
        ready = poll.poll(seconds * 1000)
        if any(fd == self._peer for fd, _ in ready):
            raise HungUp
        return bool(ready)


class _Leaving(NamedTuple):
    """Something that was moved from where it was, and perhaps to another place that is watched."""

    watch: int
    name: bytes
    path: bytes
    is_directory: bool


class _Batch:
    """Events in order; what an earlier one of the same path includes is left out.

    More than fits is told as an overflow.
    """

    def __init__(self, path: bytes) -> None:
        self.leaving: dict[int, _Leaving] = {}
        self._path = path
        self._room = _MOST_BYTES
        self._events: list[Event] = []
        self._last: dict[bytes, str] = {}

    def add(self, kind: str, path: bytes, is_directory: bool, old: bytes | None = None) -> None:
        if kind != "overflow" and _is_draft(path):
            if old is None or _is_draft(old):
                return
            kind, path, old = "deleted", old, None
        elif old is not None and _is_draft(old):
            kind, old = "created" if is_directory else "modified", None
        if self._last.get(path) in _INCLUDED.get(kind, (kind,)) and old is None:
            return
        self._room -= len(path) + len(old or b"")
        if self._room < 0:
            kind, path, is_directory, old = "overflow", self._path, True, None
            if self._last.get(path) == kind:
                return
        self._last[path] = kind
        self._events.append([kind, told(path), None if old is None else told(old), is_directory])

    def settle(self, tree: Tree, most: int = 0) -> None:
        """What left and did not arrive anywhere has gone."""
        while len(self.leaving) > most:
            one = self.leaving.pop(next(iter(self.leaving)))
            self.add("deleted", one.path, one.is_directory)
            if one.is_directory:
                tree.left(one.watch, one.name)

    def is_leaving(self, path: bytes) -> bool:
        """Whether it lies in a directory of which nobody knows where it went."""
        return any(one.is_directory and path.startswith(one.path + b"/") for one in self.leaving.values())

    def taken(self) -> list[Event]:
        events, self._events = self._events, []
        self._last.clear()
        self._room = _MOST_BYTES
        return events


def _is_draft(path: bytes) -> bool:
    return is_fresh_name(os.path.basename(path))


def _understand(news: News, tree: Tree, batch: _Batch) -> None:
    if news.mask & inotify.OVERFLOW:
        batch.add("overflow", tree.path_of(tree.root) or b"", True)
        tree.begin_anew()
        return
    if news.mask & _GONE:
        if news.watch == tree.root or news.mask & inotify.IGNORED:
            tree.forget(news.watch)
        return
    path = tree.path_of(news.watch, news.name) if news.watch in tree else None
    if path is None or (not news.name and news.watch != tree.root):
        return  # no longer watched; or told by the directory that it is in
    if batch.is_leaving(path):
        return
    _tell(news, path, tree, batch)


def _tell(news: News, path: bytes, tree: Tree, batch: _Batch) -> None:
    is_directory = bool(news.mask & inotify.IS_DIRECTORY)
    if news.mask & inotify.MOVED_FROM:
        batch.leaving[news.cookie] = _Leaving(news.watch, news.name, path, is_directory)
        batch.settle(tree, _MOST_LEAVING)
    elif news.mask & inotify.MOVED_TO and news.cookie in batch.leaving:
        left = batch.leaving.pop(news.cookie)
        batch.add("moved", path, is_directory, left.path)
        if is_directory:
            tree.moved(left.watch, left.name, news.watch, news.name)
    elif news.mask & (inotify.CREATE | inotify.MOVED_TO):
        batch.add("created", path, is_directory)
        if is_directory:
            tree.entered(news.watch, news.name)
    elif news.mask & inotify.DELETE:
        batch.add("deleted", path, is_directory)
        if is_directory:
            tree.left(news.watch, news.name)
    elif _NAMELESS.fullmatch(news.name) and not tree.has(news.watch, news.name):
        return
    elif news.mask & inotify.MODIFY:
        batch.add("modified", path, is_directory)
    elif news.mask & inotify.ATTRIB:
        batch.add("attributes", path, is_directory)


def _give(line: Line, events: list[Event]) -> None:
    """In as many pieces as it takes."""
    piece: list[str] = []
    size = 0
    for event in events:
        text = json.dumps(event)
        if piece and size + len(text) + 1 > PIECE - 2:
            line.give(f"[{','.join(piece)}]".encode())
            piece, size = [], 0
        piece.append(text)
        size += len(text) + 1
    line.give(f"[{','.join(piece)}]".encode())
