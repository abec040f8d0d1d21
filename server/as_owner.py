"""Working in a directory of somebody else's with no more rights than its owner has.

The web's user owns the directories of the store and of the uploads. It may put links into them, pipes that
nobody writes to, or a journal that makes SQLite remove a file which it names. Whatever root does there it
does as that user, and can be led only where that user could go by itself.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_libc = ctypes.CDLL(None)
_ASK = -1  # no such id: nothing is changed, and the present one is told


@contextmanager
def as_owner_of(directory: Path) -> Iterator[None]:
    """For this thread alone, and for what it does with files. Others than root stay who they are."""
    told = directory.stat() if os.geteuid() == 0 else None
    if told is None or told.st_uid == 0:
        yield
        return
    group, user = _libc.setfsgid(told.st_gid), _libc.setfsuid(told.st_uid)
    try:
        if _libc.setfsuid(_ASK) != told.st_uid:
            raise PermissionError(errno.EPERM, "root may not become the web's user here")
        yield
    finally:
        _libc.setfsuid(user)
        _libc.setfsgid(group)


def open_plain(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a plain file that has no other name. Nothing is followed, and nothing waited for."""
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    told = os.fstat(file)
    if stat.S_ISREG(told.st_mode) and told.st_nlink == 1:
        return file
    os.close(file)
    raise OSError(errno.ELOOP, "not a plain file with one name", str(path))
