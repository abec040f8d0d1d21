"""The directories that one caller watches: which are watched, and by what path each is known now.

A directory is known by its name in another, so that moving one moves all below it. Whatever cannot be watched
or told is told as an overflow: whoever needs to know looks for itself.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Callable, Iterator

from .drafts import is_fresh_name
from .files import Files
from .inotify import Inotify
from .paths import Place, opened
from .refused import Refused

_MOST_DIRECTORIES = 1000
_MOST_TOLD = 1000  # entries of one new directory
_MOST_SEEN = 100_000  # entries that are looked at for directories, at one time
_LONGEST_PATH = 8 << 10
_DEEPEST = 100
_FULL = (errno.ENOSPC, errno.ENOMEM)
_POINT = os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


class _Node:
    def __init__(self, above: int | None, name: bytes) -> None:
        self.above = above
        self.name = name
        self.below: dict[bytes, int] = {}


Tell = Callable[[str, bytes, bool], None]


class Tree:
    """`root` is the watch of what was asked for."""

    def __init__(self, files: Files, inotify: Inotify, place: Place, recursive: bool, tell: Tell) -> None:
        self._files = files
        self._inotify = inotify
        self._path = place.path
        self._identity = _identity(place.fd)
        self._recursive = recursive and stat.S_ISDIR(os.fstat(place.fd).st_mode)
        self._tell = tell
        self._nodes: dict[int, _Node] = {}
        self.root = inotify.add(place.fd)
        self._nodes[self.root] = _Node(None, b"")
        self._seen = 0
        self.cover(self.root, silent=True)

    def path_of(self, watch: int, name: bytes = b"") -> bytes | None:
        """None for what is no longer watched."""
        parts = [name] if name else []
        at: int | None = watch
        while at is not None and at != self.root:
            node = self._nodes.get(at)
            if node is None:
                return None
            parts.append(node.name)
            at = node.above
        return b"/".join([self._path, *reversed(parts)])

    def cover(self, top: int, silent: bool) -> None:
        """Watch all directories below one, and tell what is found in them unless it was there before."""
        if not self._recursive:
            return
        self._seen = 0
        waiting = [top]
        while waiting:
            waiting += self._cover_one(waiting.pop(), silent)

    def _cover_one(self, watch: int, silent: bool) -> Iterator[int]:
        fd = self._open(watch)
        if fd is None:
            return
        told, inside = 0, self.path_of(watch) or self._path
        try:
            for name, is_directory in _entries(fd):
                if is_fresh_name(name):
                    continue  # in the making; it is entered under its own name
                self._seen += 1
                told += not silent
                if self._seen > _MOST_SEEN or told > _MOST_TOLD:
                    self._tell("overflow", inside, True)
                    return
                if not silent:
                    self._tell("created", inside + b"/" + name, is_directory)
                if is_directory and (new := self._add(watch, fd, name)) is not None:
                    yield new
        finally:
            os.close(fd)

    def entered(self, watch: int, name: bytes) -> None:
        """A directory has appeared in one that is watched."""
        fd = self._open(watch) if self._recursive and not is_fresh_name(name) else None
        if fd is None:
            return
        try:
            new = self._add(watch, fd, name)
        finally:
            os.close(fd)
        if new is not None:
            self.cover(new, silent=False)

    def has(self, watch: int, name: bytes) -> bool:
        """Whether there is something of that name now."""
        fd = self._open(watch)
        if fd is None:
            return False
        try:
            os.stat(name, dir_fd=fd, follow_symlinks=False)
            return True
        except OSError:
            return False
        finally:
            os.close(fd)

    def moved(self, watch: int, name: bytes, to_watch: int, to_name: bytes) -> None:
        moving = self._nodes[watch].below.pop(name, None) if watch in self._nodes else None
        if moving is None or moving not in self._nodes or to_watch not in self._nodes:
            self.entered(to_watch, to_name)
            return
        self._nodes[moving].above, self._nodes[moving].name = to_watch, to_name
        self._nodes[to_watch].below[to_name] = moving

    def left(self, watch: int, name: bytes) -> None:
        """A directory is no longer there: nothing below it is watched any more."""
        gone = self._nodes[watch].below.pop(name, None) if watch in self._nodes else None
        waiting = [] if gone is None else [gone]
        while waiting:
            node = self._nodes.pop(one := waiting.pop(), None)
            self._inotify.remove(one)
            waiting += node.below.values() if node else ()

    def forget(self, watch: int) -> None:
        """The kernel watches it no more."""
        node = self._nodes.pop(watch, None)
        if node is not None and node.above in self._nodes:
            siblings = self._nodes[node.above].below
            if siblings.get(node.name) == watch:
                del siblings[node.name]

    def begin_anew(self) -> None:
        """News were lost: what is where has to be looked up again."""
        before = set(self._nodes)
        self._nodes = {self.root: _Node(None, b"")}
        self.cover(self.root, silent=True)
        for lost in before - set(self._nodes):
            self._inotify.remove(lost)

    def __contains__(self, watch: int) -> bool:
        return watch in self._nodes

    def _add(self, above: int, directory: int, name: bytes) -> int | None:
        path = self.path_of(above, name) or self._path
        too_deep = path.count(b"/") > _DEEPEST or len(path) > _LONGEST_PATH
        if too_deep or len(self._nodes) >= _MOST_DIRECTORIES:
            self._tell("overflow", path, True)
            return None
        try:
            fd = os.open(name, _POINT, dir_fd=directory)
        except OSError:
            return None  # it went, or is no directory any more
        try:
            watch = self._inotify.add(fd)
        except OSError as exc:
            if exc.errno in _FULL:
                self._tell("overflow", path, True)
            return None  # what may not be read may not be watched either
        finally:
            os.close(fd)
        if watch in self._nodes:
            return None  # known already, perhaps by the name that it is about to be told to have had
        self._nodes[watch] = _Node(above, name)
        self._nodes[above].below[name] = watch
        return watch

    def _open(self, watch: int) -> int | None:
        """From the root on, name by name: no link is followed, and no descriptor is held for it meanwhile.

        One that was held would keep a removed directory, and the news of its end, from going.
        """
        names: list[bytes] = []
        while watch != self.root:
            names.append(self._nodes[watch].name)
            above = self._nodes[watch].above
            if above is None or above not in self._nodes:
                return None
            watch = above
        try:
            with opened(self._files.roots, self._path, follow=False) as place:
                if _identity(place.fd) != self._identity:
                    return None
                return _below(place.fd, names)
        except (OSError, Refused):
            return None


def _below(directory: int, names: list[bytes]) -> int:
    here = os.dup(directory)
    try:
        while names:
            inner = os.open(names.pop(), _POINT, dir_fd=here)
            os.close(here)
            here = inner
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
    finally:
        os.close(here)


def _entries(fd: int) -> Iterator[tuple[bytes, bool]]:
    with os.scandir(fd) as found:
        for entry in found:
            try:
                yield os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)
            except OSError:
                continue


def _identity(fd: int) -> tuple[int, int]:
    about = os.fstat(fd)
    return about.st_dev, about.st_ino
