"""The kernel's news of directories. The instance is charged to whom the thread acts as when it is made."""

from __future__ import annotations

import os
import struct
from typing import Any, Iterator, NamedTuple

MODIFY, ATTRIB, MOVED_FROM, MOVED_TO = 0x2, 0x4, 0x40, 0x80
CREATE, DELETE, DELETE_SELF, MOVE_SELF = 0x100, 0x200, 0x400, 0x800
UNMOUNT, OVERFLOW, IGNORED, IS_DIRECTORY = 0x2000, 0x4000, 0x8000, 0x40000000
_EXCLUDE_UNLINKED = 0x4000000
_ALL = MODIFY | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF | MOVE_SELF | _EXCLUDE_UNLINKED
_HEADER = struct.Struct("iIII")
_READ = 64 << 10


class News(NamedTuple):
    watch: int
    mask: int
    cookie: int
    name: bytes


class Inotify:
    def __init__(self) -> None:
        self._libc = _libc()
        self.fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def add(self, fd: int) -> int:
        """Watch what a descriptor stands for: the number its news come under, the same if it had one."""
        return self._checked(self._libc.inotify_add_watch(self.fd, b"/proc/self/fd/%d" % fd, _ALL))

    def remove(self, watch: int) -> None:
        self._libc.inotify_rm_watch(self.fd, watch)  # it may be gone already

    def read(self) -> Iterator[News]:
        """What there is, up to a bound."""
        try:
            data = os.read(self.fd, _READ)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            watch, mask, cookie, size = _HEADER.unpack_from(data, at)
            at += _HEADER.size
            yield News(watch, mask, cookie, data[at : at + size].rstrip(b"\0"))
            at += size

    def close(self) -> None:
        os.close(self.fd)

    def _checked(self, result: int) -> int:
        if result < 0:
            import ctypes

            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result


def _libc() -> Any:
    # Not with the module: it takes memory of every sandbox, and most never need it.
    import ctypes

    return ctypes.CDLL(None, use_errno=True)
