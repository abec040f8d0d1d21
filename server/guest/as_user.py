"""Acting on files as the sandbox's user, in one thread of the guest.

Only the effective ids of the calling thread change, and with them what files are checked against and what
inotify is charged to. The real and saved ids stay root's: the user can neither signal nor trace the thread,
and it can always come back. The C library would change all threads at once: these are bare system calls.
Nothing may be spawned meanwhile: a child could not become the user in the regular way.
"""

from __future__ import annotations

import os
import struct
from contextlib import contextmanager
from typing import Iterator

from .syscalls import call

_SAME = -1
_NOT_OURSELVES = 70  # EX_SOFTWARE


@contextmanager
def as_user(uid: int, gid: int) -> Iterator[None]:
    groups, own = os.getgroups(), os.getegid()
    try:
        _set_groups([])
        call("setresgid", _SAME, gid, _SAME)
        call("setresuid", _SAME, uid, _SAME)
        yield
    finally:
        _come_back(groups, own)


def _come_back(groups: list[int], gid: int) -> None:
    try:
        call("setresuid", _SAME, 0, _SAME)
        call("setresgid", _SAME, gid, _SAME)
        _set_groups(groups)
    except OSError:
        os._exit(_NOT_OURSELVES)  # who goes on with somebody else's ids takes them for its own


def _set_groups(groups: list[int]) -> None:
    call("setgroups", len(groups), struct.pack(f"{len(groups)}I", *groups))
