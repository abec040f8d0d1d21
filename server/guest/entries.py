"""What is told of something in a directory."""

from __future__ import annotations

import json
import os
import stat
from typing import Any

from .files import told
from .paths import Place, Spot
from .refused import Refused

Facts = Any  # a list in the order of `facts`, so that thousands of them stay small

_ALL_ELSE = 160  # bytes of what the user did not choose
_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


def facts(path: bytes, about: os.stat_result, target: bytes | None = None) -> Facts:
    return [
        told(path),
        _KINDS.get(stat.S_IFMT(about.st_mode), "other"),
        about.st_size,
        stat.S_IMODE(about.st_mode),
        about.st_mtime_ns,
        etag(about),
        None if target is None else told(target),
    ]


def length(row: Facts) -> int:
    """As JSON, about: a byte of a name may take six, and the last name of a path is told twice."""
    path, target = row[0], row[6] or ""
    return _ALL_ELSE + len(json.dumps([path, path.rpartition("/")[2], target]))


def etag(about: os.stat_result) -> str:
    """Other bytes, another tag: no write leaves all of these as they were."""
    return f"{about.st_ino:x}-{about.st_size:x}-{about.st_mtime_ns:x}-{about.st_ctime_ns:x}"


def of_place(place: Place) -> Facts:
    about = os.fstat(place.fd)
    target = os.readlink(b"", dir_fd=place.fd) if stat.S_ISLNK(about.st_mode) else None
    return facts(place.path, about, target)


def of_spot(spot: Spot) -> Facts:
    """Of what is there now; a link is itself."""
    return below(spot.directory, spot.name, spot.path)


def below(directory: int, name: bytes, path: bytes) -> Facts:
    about = os.stat(name, dir_fd=directory, follow_symlinks=False)
    target = os.readlink(name, dir_fd=directory) if stat.S_ISLNK(about.st_mode) else None
    return facts(path, about, target)


def status_of(spot: Spot) -> os.stat_result | None:
    try:
        return os.stat(spot.name, dir_fd=spot.directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def must_be_file(about: os.stat_result) -> None:
    if stat.S_ISDIR(about.st_mode):
        raise Refused("is_directory")
    if not stat.S_ISREG(about.st_mode):
        raise Refused("not_a_regular_file")
