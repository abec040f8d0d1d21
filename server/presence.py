"""Whether anybody speaks to a session's guest right now, in any worker: then it must not be frozen.

Whoever is about to speak says so first and looks at the session's phase afterwards; the keeper writes the
phase first and looks here afterwards. So one of the two always sees the other.

A worker that speaks holds a lock on a byte of a file, which stands for the session. The kernel lets go of it
when the worker dies. Another byte is locked by who has the session for itself for a while.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from server.as_owner import open_plain
from server.errors import ServerBusy

_FLOCK = struct.Struct("hhqqi")  # the kernel's struct flock: kind, whence, start, length, process
_DIGITS = 15  # of a session's id: as many as a position in a file may have
_ALONE = 1 << 60  # where the bytes of those begin who have a session for themselves
_ALONE_SECONDS = 600.0
_LOOK_SECONDS = 0.05


class Presence:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._lock = threading.Lock()
        self._here: dict[str, int] = {}
        self._alone: set[str] = set()

    def enter(self, session_id: str) -> None:
        with self._lock:
            self._here[session_id] = already = self._here.get(session_id, 0) + 1
            if already == 1:
                fcntl.lockf(self._opened(), fcntl.LOCK_SH | fcntl.LOCK_NB, 1, _byte(session_id))

    def leave(self, session_id: str) -> None:
        with self._lock:
            self._here[session_id] -= 1
            if not self._here[session_id]:
                del self._here[session_id]
                fcntl.lockf(self._opened(), fcntl.LOCK_UN, 1, _byte(session_id))

    @contextmanager
    def alone(self, session_id: str) -> Iterator[None]:
        """One at a time for each session, in whatever worker; the others wait."""
        deadline = time.monotonic() + _ALONE_SECONDS
        while not self._may_be_alone(session_id):
            if time.monotonic() > deadline:
                raise ServerBusy("Another call prepares the same session. Try again shortly.")
            time.sleep(_LOOK_SECONDS)
        try:
            yield
        finally:
            with self._lock:
                self._alone.remove(session_id)
                fcntl.lockf(self._opened(), fcntl.LOCK_UN, 1, _ALONE + _byte(session_id))

    def _may_be_alone(self, session_id: str) -> bool:
        with self._lock:
            if session_id in self._alone:
                return False
            try:
                fcntl.lockf(self._opened(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _ALONE + _byte(session_id))
            except (BlockingIOError, PermissionError):  # the two ways in which a lock may be refused
                return False
            self._alone.add(session_id)
            return True

    def _opened(self) -> int:
        """At first use: gunicorn forks between the wiring and the first request, locks are not inherited."""
        if self._file < 0:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._file


def is_anybody_at(path: Path, session_id: str) -> bool:
    """For the keeper, which makes and locks nothing."""
    try:
        file = open_plain(path)
    except FileNotFoundError:
        return False  # no worker has spoken to anybody yet
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _byte(session_id), 1, 0)
        return bool(_FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK)
    finally:
        os.close(file)


def _byte(session_id: str) -> int:
    return int(session_id[:_DIGITS], 16)
