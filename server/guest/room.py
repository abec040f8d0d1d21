"""Whether there is room for files: tried out where the host keeps the limit, measured where it cannot."""

from __future__ import annotations

import errno
import os
import secrets
import time
from typing import NamedTuple

_LITTLE = 1 << 20  # bytes; a workspace that cannot take them is full
_IN_MEMORY = ("/tmp", "/dev/shm")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LEAST = 4096  # what an inode counts at least
_DEEPEST = 512  # each level takes a descriptor
_MOST_ENTRIES = 1 << 20
_MOST_WAITING = 1 << 17  # names of directories
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def is_full(home: str) -> bool:
    """As the user, whose limits are meant: quotas do not show in what a filesystem says of itself."""
    return not _can_write(home) or any(_has_no_block(place) for place in _IN_MEMORY)


def _can_write(home: str) -> bool:
    try:
        fd = _unnamed_file(home)
        try:
            os.posix_fallocate(fd, 0, _LITTLE)
        finally:
            os.close(fd)
    except OSError as exc:
        return exc.errno not in _FULL
    return True


def _unnamed_file(home: str) -> int:
    """Where the filesystem knows none, one whose name is gone at once."""
    try:
        return os.open(home, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        if exc.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    path = os.path.join(home, f".{secrets.token_hex(16)}")
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return fd


def _has_no_block(place: str) -> bool:
    try:
        facts = os.statvfs(place)
    except OSError:
        return False
    return facts.f_blocks > 0 and (facts.f_bavail == 0 or (facts.f_files > 0 and facts.f_favail == 0))


class Measure(NamedTuple):
    used: int
    complete: bool
    seconds: float


class _Level(NamedTuple):
    directory: int
    waiting: list[str]  # directories in it that are still to be entered


def measure(home: str) -> Measure:
    """What the tree takes on disk, as far as the user may look; not `complete` if it is beyond all bounds."""
    began = time.monotonic()
    used = entries = waiting = 0
    levels: list[_Level] = []
    bounded = True
    try:
        directory = os.open(home, _DIRECTORY)
        while True:
            found, names, size = _sum(directory, _MOST_ENTRIES - entries)
            used, entries, waiting = used + size, entries + found, waiting + len(names)
            levels.append(_Level(directory, names))
            bounded = entries < _MOST_ENTRIES and waiting < _MOST_WAITING and len(levels) < _DEEPEST
            if not bounded:
                break
            following = _next(levels)
            if following is None:
                break
            directory, waiting = following, waiting - 1
    except OSError:
        pass  # the home itself is closed or gone
    finally:
        for level in levels:
            os.close(level.directory)
    return Measure(used, bounded, time.monotonic() - began)


def _next(levels: list[_Level]) -> int | None:
    """The next directory, opened; those that are done with are closed."""
    while levels:
        while levels[-1].waiting:
            try:
                return os.open(levels[-1].waiting.pop(), _DIRECTORY, dir_fd=levels[-1].directory)
            except OSError:
                continue  # gone, or closed to its owner
        os.close(levels.pop().directory)
    return None


def _sum(directory: int, most: int) -> tuple[int, list[str], int]:
    """How many entries a directory has, the names of those that are directories, and the size of all."""
    found = size = 0
    names: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            found += 1
            if found > most or len(names) > _MOST_WAITING:
                break
            try:
                facts = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if entry.is_dir(follow_symlinks=False):
                names.append(entry.name)
                size += max(_LEAST, 512 * facts.st_blocks)
            else:
                size += max(_LEAST, 512 * facts.st_blocks) // max(1, facts.st_nlink)
    return found, names, size
