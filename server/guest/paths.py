"""From a caller's path to a descriptor of what it names, wherever the user's links lead.

The kernel resolves the path, as the user, and is then asked where it arrived: only below the roots is
anything touched. So a planted link can lead neither to the guest's own /proc/self nor anywhere else outside.
What has been checked is the descriptor, and work is done on it; nothing is looked up by name a second time.
"""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import Iterator, NamedTuple

from .refused import Refused

LONGEST = 4096
_MOST_LINKS = 40  # as the kernel


class Roots(NamedTuple):
    """`home` is where relative paths begin; `others` may be named absolutely, as it may."""

    home: bytes
    others: tuple[bytes, ...] = ()

    def hold(self, path: bytes) -> bool:
        return any(path == root or path.startswith(root + b"/") for root in (self.home, *self.others))

    def are(self, path: bytes) -> bool:
        """Whether it is one of the roots themselves, which are nobody's to remove."""
        return path in (self.home, *self.others)


class Place(NamedTuple):
    """Something that exists: a descriptor that can only be pointed with (O_PATH), and its real path."""

    fd: int
    path: bytes


class Spot(NamedTuple):
    """Where something is or may be made: its directory, as a descriptor and real path, and its name there."""

    directory: int
    inside: bytes
    name: bytes

    @property
    def path(self) -> bytes:
        return self.inside.rstrip(b"/") + b"/" + self.name


def absolute(roots: Roots, path: bytes) -> bytes:
    """The path from / on. One that leaves the roots by its own words is refused before anything is opened."""
    if not path or len(path) > LONGEST or b"\0" in path:
        raise Refused("invalid_path")
    full = os.path.join(roots.home, path)
    if not roots.hold(os.path.normpath(full)):
        raise Refused("invalid_path")
    return full


@contextmanager
def opened(roots: Roots, path: bytes, follow: bool = True) -> Iterator[Place]:
    """What a path names. Without `follow` a link at its end is itself what is named."""
    flags = os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    fd = os.open(absolute(roots, path), flags)
    try:
        yield Place(fd, _where(roots, fd))
    finally:
        os.close(fd)


@contextmanager
def spotted(roots: Roots, path: bytes, follow: bool) -> Iterator[Spot]:
    """Where a path's last name is, whether or not it exists.

    With `follow`, where the links at its end lead: to what would be written. No root is such a place.
    """
    for _ in range(_MOST_LINKS):
        with _directory_of(roots, path) as spot:
            target = _link_text(spot) if follow else None
            if target is None:
                if roots.are(spot.path):
                    raise Refused("invalid_path")
                yield spot
                return
            path = os.path.join(spot.inside, target)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


@contextmanager
def _directory_of(roots: Roots, path: bytes) -> Iterator[Spot]:
    full = absolute(roots, path)
    inside, name = os.path.split(full.rstrip(b"/"))
    if name in (b".", b".."):  # the real name of such a place is for the kernel to say
        with opened(roots, path) as place:
            inside, name = os.path.split(place.path)
    if roots.are(os.path.join(inside, name)):
        raise Refused("invalid_path")
    fd = os.open(inside, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Spot(fd, _where(roots, fd), name)
    finally:
        os.close(fd)


def _where(roots: Roots, fd: int) -> bytes:
    real = os.readlink(b"/proc/self/fd/%d" % fd)
    if not roots.hold(real):
        raise Refused("invalid_path")
    return real


def _link_text(spot: Spot) -> bytes | None:
    """None for what is no link, or is not there."""
    try:
        return os.readlink(spot.name, dir_fd=spot.directory)
    except OSError as exc:
        if exc.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


def reopened(place: Place, flags: int) -> int:
    """The same file, open. It waits for nobody: neither for a FIFO's other end nor for a terminal."""
    ways = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    return os.open(b"/proc/self/fd/%d" % place.fd, flags | ways)
