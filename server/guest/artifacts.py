"""What a command leaves for its caller: the files below `artifacts` that are new or changed since it began.

Only that directory is looked at. A file has changed when the kernel's own time of its last change says so,
which its owner cannot set; what came with a directory that was moved here keeps its old time, and is found
because the directory is new. Commands that run side by side may each tell a file that one of them wrote;
so may one that waited for its shell, if the file was written within the clock's last tick before it began.
What was written after a command's end is left to whoever came next.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
import time
from itertools import islice
from typing import Dict, NamedTuple

from .protocol import Head

PLACE = "artifacts"
_MOST = 100
_MOST_EXAMINED = 4096
_SECONDS = 0.2
_DEEPEST = 32
_HASHED_BYTES = 1 << 20
_SEEN_BYTES = 1 << 20  # of paths, kept from one look to the next
_TOLD_BYTES = 64 << 10  # of paths, in one result
_LONGEST_PATH = 4096
_READ_SIZE = 256 << 10
_COARSE_CLOCK = 5  # CLOCK_REALTIME_COARSE: the one that files are marked with, a few milliseconds behind
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Moment(NamedTuple):
    """When something began: by the clock that files are marked with, and by the one that times looks."""

    change: int
    look: int


class Found(NamedTuple):
    files: list[Head]
    truncated: bool


class _Seen(NamedTuple):
    """A file as it was; `at` is the end of the look that saw it so first."""

    facts: tuple[int, ...]
    digest: str | None
    at: int


_Table = Dict[bytes, _Seen]
_NOTHING = Found([], False)


def now() -> Moment:
    return Moment(time.clock_gettime_ns(_COARSE_CLOCK), time.monotonic_ns())


class Artifacts:
    def __init__(self, home: str) -> None:
        self.path = os.path.join(home, PLACE)
        self._seen: _Table = {}
        self._lock = threading.Lock()

    def look(self, since: Moment, until: int | None) -> Found:
        """As the user, or not at all. Most sessions have no such directory: that costs one call."""
        try:
            root = os.open(self.path, _DIRECTORY)
        except OSError:
            if self._seen:
                self._seen = {}
            return _NOTHING
        try:
            with self._lock:
                look = _Look(since, until, self._seen)
                try:
                    look.walk(root)
                except OSError:  # it was closed to its owner just now
                    look.truncated = True
                self._seen = look.finished()
                return Found(look.found, look.truncated)
        finally:
            os.close(root)


class _Look:
    def __init__(self, since: Moment, until: int | None, seen: _Table) -> None:
        self._since = since
        self._until = until
        self._before = seen
        self._after: _Table = {}
        self._deadline = time.monotonic() + _SECONDS
        self._room = _SEEN_BYTES
        self._told = _TOLD_BYTES
        self.found: list[Head] = []
        self.truncated = False

    def walk(self, root: int) -> None:
        is_new = self._is_new_directory(b"", os.fstat(root))
        self._walk(root, b"", is_new, _DEEPEST)

    def finished(self) -> _Table:
        """Who began before this moment may have changed what was seen; who begins later has not."""
        end = time.monotonic_ns()
        return {path: seen if seen.at else seen._replace(at=end) for path, seen in self._after.items()}

    def _walk(self, directory: int, prefix: bytes, is_new: bool, depth: int) -> None:
        left = _MOST_EXAMINED - len(self._after)
        with os.scandir(directory) as entries:
            some = sorted(islice(entries, left + 1), key=lambda entry: entry.name)
        for entry in some:
            name = os.fsencode(entry.name)
            path = prefix + name
            if not self._may_examine(path):
                self.truncated = True
                return
            try:
                facts = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # gone meanwhile
            if stat.S_ISREG(facts.st_mode):
                self._examine(directory, name, path, facts, is_new)
            elif stat.S_ISDIR(facts.st_mode):
                below = is_new or self._is_new_directory(path, facts)
                self._enter(directory, name, path, below, depth - 1)

    def _may_examine(self, path: bytes) -> bool:
        self._room -= len(path)
        return (
            len(self._after) < _MOST_EXAMINED
            and self._room > 0
            and len(path) <= _LONGEST_PATH
            and time.monotonic() < self._deadline
        )

    def _is_new_directory(self, path: bytes, facts: os.stat_result) -> bool:
        before = self._before.get(path)
        self._after[path] = _Seen((facts.st_ino,), None, before.at if before else 0)
        return facts.st_ctime_ns >= self._since.change and (before is None or before.facts != (facts.st_ino,))

    def _enter(self, directory: int, name: bytes, path: bytes, is_new: bool, depth: int) -> None:
        if depth == 0:
            self.truncated = True
            return
        with contextlib.suppress(OSError):  # gone, replaced, or closed to its owner
            below = os.open(name, _DIRECTORY, dir_fd=directory)
            try:
                self._walk(below, path + b"/", is_new, depth)
            finally:
                os.close(below)

    def _examine(self, directory: int, name: bytes, path: bytes, facts: os.stat_result, is_new: bool) -> None:
        is_ = (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
        before = self._before.get(path)
        if self._until is not None and facts.st_ctime_ns > self._until:
            if before is not None:
                self._after[path] = before
            return
        same = before is not None and before.facts == is_
        if not is_new and facts.st_ctime_ns < self._since.change:
            self._after[path] = before if same and before else _Seen(is_, None, 0)
            return
        digest = None
        if facts.st_size <= _HASHED_BYTES and len(self.found) < _MOST:
            digest = self._digest(directory, name)
        if before is not None and same and before.digest == digest:
            self._after[path] = before
            if before.at < self._since.look:
                return  # it was so before the command began
        else:
            self._after[path] = _Seen(is_, digest, 0)
        self._tell(path, facts.st_size, digest)

    def _tell(self, path: bytes, size: int, digest: str | None) -> None:
        self._told -= len(path)
        if len(self.found) >= _MOST or self._told < 0:
            self.truncated = True
            return
        named = f"{PLACE}/{path.decode('latin-1')}"  # a character for each byte, whatever the bytes are
        self.found.append({"path": named, "size": size, "sha256": digest})

    def _digest(self, directory: int, name: bytes) -> str | None:
        """None for what cannot be read, grows meanwhile, or is reached too late."""
        try:
            fd = os.open(name, _FILE, dir_fd=directory)
        except OSError:
            return None
        digest, left = hashlib.sha256(), _HASHED_BYTES
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            while time.monotonic() < self._deadline:
                chunk = os.read(fd, _READ_SIZE)
                if not chunk:
                    return digest.hexdigest()
                left -= len(chunk)
                if left < 0:
                    return None
                digest.update(chunk)
        except OSError:
            pass
        finally:
            os.close(fd)
        return None
