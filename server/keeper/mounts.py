"""Mounts of ours on this host: made by descriptor, with all their options before anybody can see them.

An idmapped mount shows files that belong to one owner on disk as belonging to the session's uid, so that a
volume can be given to any sandbox without changing a file in it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import stat
import struct
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

_OPEN_TREE, _MOUNT_SETATTR = 428, 442  # the same numbers on every architecture
_MOVE_MOUNT = _OPEN_TREE + 1
_AT_FDCWD, _AT_EMPTY_PATH, _AT_SYMLINK_NOFOLLOW = -100, 0x1000, 0x100
_CLONE, _FROM_EMPTY_PATH = 1, 4
_RDONLY, _NOSUID, _NODEV, _IDMAP = 1, 2, 4, 1 << 20
_MS_BIND, _MS_SHARED, _MS_PRIVATE = 1 << 12, 1 << 20, 1 << 18
_DETACH = 2
_NAMESPACE_SECONDS = 10

_libc = ctypes.CDLL(None, use_errno=True)


def attach(source: Path, target: Path, *, users: int | None = None, read_only: bool = False) -> None:
    """Mount the directory or file `source` over `target`, seen through the user namespace `users`.

    A link is not followed: whoever may write to the directory that it is in could name anything by it.
    """
    flags = _CLONE | os.O_CLOEXEC | _AT_SYMLINK_NOFOLLOW
    tree = _call(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), flags)
    try:
        if stat.S_ISLNK(os.fstat(tree).st_mode):
            raise OSError(errno.ELOOP, "a link is not mounted")
        flags = _NOSUID | _NODEV | (_RDONLY if read_only else 0) | (0 if users is None else _IDMAP)
        options = struct.pack("4Q", flags, 0, 0, users or 0)
        _call(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, options, len(options))
        _call(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _FROM_EMPTY_PATH)
    finally:
        os.close(tree)


def detach(target: Path) -> None:
    """Take away all that is mounted there, whoever still uses it. Nothing mounted is fine."""
    while True:
        if _libc.umount2(os.fsencode(target), _DETACH) != 0:
            code = ctypes.get_errno()
            if code in (errno.EINVAL, errno.ENOENT):
                return
            raise OSError(code, os.strerror(code))


def lift(target: Path) -> None:
    """Take away what was mounted there last; what lies below is there again."""
    if _libc.umount2(os.fsencode(target), _DETACH) != 0 and ctypes.get_errno() != errno.EINVAL:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def share(directory: Path) -> None:
    """What is mounted below from now on appears in the containers that have a part of it, and only there."""
    if directory in below(directory):
        return
    name = os.fsencode(directory)
    _mount(name, name, _MS_BIND)
    _mount(None, name, _MS_PRIVATE)
    _mount(None, name, _MS_SHARED)


def below(directory: Path) -> list[Path]:
    """Every place at or below `directory` where something is mounted, the innermost last."""
    return [place for place, _, _ in _table() if place == directory or directory in place.parents]


def filesystem_of(directory: Path) -> str | None:
    """The kind of filesystem that is mounted right there; None if nothing is."""
    return next((kind for place, kind, _ in reversed(list(_table())) if place == directory), None)


def sources_of(directory: Path) -> set[str]:
    """The devices that are mounted right there."""
    return {source for place, _, source in _table() if place == directory}


def _table() -> Iterator[tuple[Path, str, str]]:
    """Places, kinds and sources. Odd characters of a place are written as octal numbers."""
    with open("/proc/self/mountinfo", "rb") as table:
        for line in table:
            left, _, right = line.partition(b" - ")
            place = left.split()[4].decode("unicode_escape").encode("latin-1")
            kind, source, *_ = right.split()
            yield Path(os.fsdecode(place)), kind.decode(), os.fsdecode(source)


def user_namespace(mapped: Mapping[int, int]) -> int:
    """A descriptor of a namespace in which these uids and gids are those of ours, and there are no others."""
    keeper = subprocess.Popen(
        ["unshare", "--user", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert keeper.stdin is not None and keeper.stdout is not None
        os.write(keeper.stdin.fileno(), b".")
        ready, _, _ = select.select([keeper.stdout], [], [], _NAMESPACE_SECONDS)
        if not ready or os.read(keeper.stdout.fileno(), 1) != b".":  # its echo: it is where it should be
            raise OSError(errno.ENOSYS, "user namespaces cannot be made here")
        table = "".join(f"{inside} {outside} 1\n" for inside, outside in mapped.items())
        for kind in ("uid", "gid"):
            Path(f"/proc/{keeper.pid}/{kind}_map").write_text(table)
        return os.open(f"/proc/{keeper.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        keeper.kill()
        keeper.communicate(timeout=_NAMESPACE_SECONDS)


def _mount(source: bytes | None, target: bytes, flags: int) -> None:
    if _libc.mount(source, target, None, ctypes.c_ulong(flags), None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _call(number: int, *arguments: int | bytes) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
