"""Making directories."""

from __future__ import annotations

import contextlib
import os
import stat

from . import entries
from .files import Files, named
from .paths import Roots, absolute, opened, spotted
from .protocol import Head
from .refused import Refused

_MODE = 0o755


def make(files: Files, head: Head) -> Head:
    path = named(head)
    with files.touched():
        with contextlib.suppress(FileNotFoundError), opened(files.roots, path) as place:
            if not stat.S_ISDIR(os.fstat(place.fd).st_mode):
                raise Refused("already_exists")
            return {"ok": True, "entry": entries.of_place(place), "new": False}
        made = make_parents(files.roots, path) if head["parents"] is True else []
        mode = _MODE if head["mode"] is None else int(head["mode"])
        try:
            with spotted(files.roots, path, follow=False) as spot:
                os.mkdir(spot.name, mode, dir_fd=spot.directory)
                made.clear()
                return {"ok": True, "entry": entries.of_spot(spot), "new": True}
        finally:
            unmake(made)


def make_parents(roots: Roots, path: bytes) -> list[bytes]:
    """The directories that a path needs and that were not there, outermost first."""
    missing: list[bytes] = []
    inside = os.path.dirname(absolute(roots, path).rstrip(b"/"))
    while True:
        try:
            with opened(roots, inside) as place:
                return _make_below(place.fd, place.path, missing)
        except FileNotFoundError:
            if roots.are(inside):
                raise  # a place that this sandbox does not have
            inside, name = os.path.split(inside.rstrip(b"/"))
            if name == b".." or not name:
                raise
            missing.append(name)


def _make_below(directory: int, path: bytes, missing: list[bytes]) -> list[bytes]:
    made: list[bytes] = []
    fd = os.dup(directory)
    try:
        while missing:
            name = missing.pop()
            if name == b".":
                continue
            path = os.path.join(path, name)
            with contextlib.suppress(FileExistsError):  # somebody else was faster
                os.mkdir(name, _MODE, dir_fd=fd)
                made.append(path)
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(name, flags, dir_fd=fd)
            os.close(fd)
            fd = inner
    except OSError:
        unmake(made)
        raise
    finally:
        os.close(fd)
    return made


def unmake(made: list[bytes]) -> None:
    """Only what is empty goes."""
    for path in reversed(made):
        with contextlib.suppress(OSError):
            os.rmdir(path)
