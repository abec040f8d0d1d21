"""The script that unpacks what comes on stdin below a directory, which is made if it is missing.

What was unpacked before something went wrong stays; directories that were made for nothing go. What cannot or
must not be unpacked is skipped and told.
"""

from __future__ import annotations

import contextlib
import os
from contextlib import contextmanager
from typing import Iterator

from ..paths import Roots, absolute, opened
from ..refused import Refused
from ..tool import Said, path_of, roots_of, run, say, told
from . import tar_in, zip_in
from .compressed import pieces_of, plain
from .landing import Landing, Skipped, step
from .members import MOST_MEMBERS, Member, Source

_MOST_TOLD = 100
_MOST_TOLD_BYTES = 8000  # of names; as JSON they may be six times as long
_LONGEST_TOLD = 1000


class _Skips:
    """Those that were skipped: some by name, all of them counted."""

    def __init__(self) -> None:
        self.count = 0
        self.told: list[list[str]] = []
        self._room = _MOST_TOLD_BYTES

    def add(self, name: bytes, reason: str) -> None:
        self.count += 1
        name = name[:_LONGEST_TOLD]
        if len(self.told) < _MOST_TOLD and len(name) <= self._room:
            self._room -= len(name)
            self.told.append([told(name), reason])


def main() -> None:
    run(_unpack)


def _unpack(asked: Said) -> Said:
    os.umask(0)
    skips = _Skips()
    with _target(roots_of(asked), path_of(asked)) as base:
        say({"ok": True, "path": told(os.readlink(b"/proc/self/fd/%d" % base))})
        landing = Landing(base)
        for count, (member, content) in enumerate(_members(base, asked["format"], asked["limit"]), 1):
            if count > MOST_MEMBERS:
                raise Refused("too_large")
            try:
                landing.put(member, content)
            except Skipped as exc:
                skips.add(member.name, exc.reason)
        landing.close()
    done = {"files": landing.files, "directories": landing.directories, "bytes": landing.bytes}
    return {**done, "skipped": skips.told, "skipped_count": skips.count}


@contextmanager
def _target(roots: Roots, path: bytes) -> Iterator[int]:
    """The directory to unpack below. What is missing of its path is made, inside the roots only."""
    here, missing = _nearest(roots, absolute(roots, path))
    made, whole = 0, False
    try:
        for name in reversed(missing):
            above = here
            here, new = step(above, name)
            made = made + 1 if new else 0
            os.close(above)
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=here):
            raise Refused("permission_denied")
        yield here
        whole = True
    except Skipped as exc:
        raise Refused("not_a_directory") from exc
    finally:
        if not whole:
            _unmake(here, made)
        os.close(here)


def _unmake(here: int, made: int) -> None:
    """So many directories from this one upwards, as far as they are empty."""
    path = os.readlink(b"/proc/self/fd/%d" % here)
    with contextlib.suppress(OSError):
        for _ in range(made):
            os.rmdir(path)
            path = os.path.dirname(path)


def _nearest(roots: Roots, path: bytes) -> tuple[int, list[bytes]]:
    missing: list[bytes] = []
    while True:
        try:
            with opened(roots, path) as place:
                return os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=place.fd), missing
        except FileNotFoundError:
            path, name = os.path.split(path.rstrip(b"/"))
            if name in (b"", b".", b"..") or not roots.hold(path):
                raise
            missing.append(name)


def _members(base: int, format: str, limit: int) -> Iterator[tuple[Member, Iterator[bytes]]]:
    if format != "zip":
        return tar_in.members(Source(plain(pieces_of(0), format == "tar.gz"), limit))
    spool = _nameless(base)
    for piece in pieces_of(0):
        view = memoryview(piece)
        while view:
            view = view[os.write(spool, view) :]
    return zip_in.members(spool, limit)


def _nameless(base: int) -> int:
    """A file that counts against the disk, that nobody sees, and that goes with this process."""
    return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=base)
