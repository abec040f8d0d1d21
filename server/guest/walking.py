"""A tree of directories, walked as it is: no link is followed, and it may be deeper than any path can name.

Nothing recurses, and one descriptor is held however deep it goes: the way back is "..", which must lead to
where the walk came from.
"""

from __future__ import annotations

import os
import stat
from typing import Callable, Generator, Iterator, NamedTuple

_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_BACK = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class Moved(Exception):
    """A directory was moved away while the walk was in it."""


class Found(NamedTuple):
    """An entry: the directory it lies in, its name there, its path from the root, and what it was when seen.

    `stat` is None where it could not be seen, and for a directory that was told before but cannot be entered.
    """

    directory: int
    name: bytes
    path: bytes
    stat: os.stat_result | None

    @property
    def is_directory(self) -> bool:
        return self.stat is not None and stat.S_ISDIR(self.stat.st_mode)


class _Level(NamedTuple):
    name: bytes
    identity: tuple[int, int]
    waiting: list[bytes]  # directories to be entered, the first one last


def walk(root: int, enter: Callable[[Found], bool] = lambda found: True) -> Iterator[Found]:
    """All below `root`; a directory comes before what is in it. A descriptor is good until the next."""
    here, path = os.open(".", _ENTER, dir_fd=root), b""
    levels: list[_Level] = []
    try:
        levels.append(_Level(b"", _identity(here), (yield from _scan(here, path, enter))))
        while levels:
            level = levels[-1]
            if not level.waiting:
                levels.pop()
                if levels:
                    here = _instead(here, _back(here, levels[-1].identity))
                    path = path[: -len(level.name) - 1]
                continue
            name = level.waiting.pop()
            below = _entered(here, name)
            if below is None:
                yield Found(here, name, path + name, None)
                continue
            here, path = _instead(here, below), path + name + b"/"
            levels.append(_Level(name, _identity(here), (yield from _scan(here, path, enter))))
    finally:
        os.close(here)


def _scan(here: int, path: bytes, enter: Callable[[Found], bool]) -> Generator[Found, None, list[bytes]]:
    """Yields what is in a directory, returns which directories of it are to be entered."""
    waiting = []
    with os.scandir(here) as entries:
        for entry in entries:
            name = os.fsencode(entry.name)
            try:
                seen: os.stat_result | None = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # it went meanwhile
            except OSError:
                seen = None
            found = Found(here, name, path + name, seen)
            yield found
            if found.is_directory and enter(found):
                waiting.append(name)
    return sorted(waiting, reverse=True)


def _entered(here: int, name: bytes) -> int | None:
    try:
        return os.open(name, _ENTER, dir_fd=here)
    except OSError:
        return None


def _back(here: int, identity: tuple[int, int]) -> int:
    above = os.open("..", _BACK, dir_fd=here)
    if _identity(above) != identity:
        os.close(above)
        raise Moved
    return above


def _instead(old: int, new: int) -> int:
    os.close(old)
    return new


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino
