"""A file that all web workers map, cut into lanes: each worker writes only in the one it holds.

A lane is held by a file lock, which the kernel lets go when the worker dies; whoever starts next takes it
over as it is. So several processes count together without waiting for each other, and without a system call.
A lane is a hash table: a name has a few places where it may be.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import mmap
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from server.as_owner import open_plain
from server.errors import StoreUnavailable

TRIES = 8
KEY_BYTES = 8
_NAMES_KNOWN = 8192
_DOOR = 1 << 30  # the byte whose lock lets workers in one by one; far behind the lanes


class Lanes:
    """`take_over` is called with the map and the offsets of the lanes that nobody holds, under a lock."""

    def __init__(
        self,
        path: Path,
        workers: int,
        places: int,
        place_bytes: int,
        take_over: Callable[[mmap.mmap, Iterable[int]], None] = lambda shared, free: None,
    ) -> None:
        self._path = path
        self._lanes = 2 * workers + 2  # at a reload the old workers and the new ones live side by side
        self._place_bytes = place_bytes
        self._window = TRIES * place_bytes
        self._places = places
        self._take_over = take_over
        self._map: mmap.mmap | None = None
        self.lane_bytes = places * place_bytes
        self.mine: int | None = None  # where the lane begins that this process writes

    def opened(self) -> mmap.mmap:
        """Mapped at first use: gunicorn forks between the wiring and the first request."""
        if self._map is None:
            file, shared = self._mapped()
            self.mine = self._take_lane(file, shared)
            self._map = shared
        return self._map

    def looked_at(self) -> mmap.mmap | None:
        """The same for who only reads; None while no worker has been there, or what is there is no file."""
        if self._map is None:
            try:
                file = open_plain(self._path)
            except OSError:
                return None
            with os.fdopen(file, "rb") as opened:
                size = os.fstat(file).st_size // self.lane_bytes * self.lane_bytes
                self._map = mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ) if size else None
        return self._map

    def spot(self, name: str) -> tuple[bytes, int]:
        """A name's key, and where in a lane its places begin."""
        return _spot(name, self._places, self._place_bytes)

    def find(self, shared: mmap.mmap | bytearray, start: int, key: bytes) -> int:
        """Where a key is among the places that begin at `start`; -1 if it is not there."""
        offset = shared.find(key, start, start + self._window)
        while offset >= 0 and (offset - start) % self._place_bytes:  # these bytes, but not in a key's place
            offset = shared.find(key, offset + 1, start + self._window)
        return offset

    def _mapped(self) -> tuple[int, mmap.mmap]:
        """Not smaller than it is: with fewer workers than before, nothing that was counted is forgotten."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lanes = max(self._lanes, os.fstat(file).st_size // self.lane_bytes)
        size = self._lanes * self.lane_bytes
        _allocate(file, size)
        return file, mmap.mmap(file, size)

    def _take_lane(self, file: int, shared: mmap.mmap) -> int | None:
        """The lowest that nobody holds. Its lock, and so the file, is held until the process ends."""
        fcntl.lockf(file, fcntl.LOCK_EX, 1, _DOOR)  # one worker at a time comes by here
        free = [lane for lane in range(self._lanes) if _lock(file, lane)]
        self._take_over(shared, [lane * self.lane_bytes for lane in free])
        for lane in [*free[1:], _DOOR]:
            fcntl.lockf(file, fcntl.LOCK_UN, 1, lane)
        return free[0] * self.lane_bytes if free else None


def _allocate(file: int, size: int) -> None:
    """For good: a page of a mapped file that finds no room on the disk would end the process."""
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as exc:
        os.close(file)
        raise StoreUnavailable("The server's disk has no room. Try again shortly.") from exc


def _lock(file: int, lane: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, lane)
    except OSError:
        return False
    return True


@functools.lru_cache(maxsize=_NAMES_KNOWN)
def _spot(name: str, places: int, place_bytes: int) -> tuple[bytes, int]:
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=KEY_BYTES).digest()
    key = int.from_bytes(digest, "little") | 1  # never all zeros: that is a place nobody has
    return key.to_bytes(KEY_BYTES, "little"), key % (places - TRIES) * place_bytes
