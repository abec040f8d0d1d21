"""How much of something each tenant has in use right now, counted over all web workers without a lock.

One file, mapped by every worker. A worker writes only in the region it holds by a file lock, which the kernel
lets go when the worker dies; whoever starts next clears what the dead have left. So nothing that a crash
leaves behind is counted for long, and counting costs no system call.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KINDS = ("executions", "streams")
_PLACES = 4096  # tenants and sessions in a region, give or take
_TRIES = 8
_PLACE = struct.Struct("<QII")
_WINDOW = struct.Struct("<" + "QII" * _TRIES)
_REGION_BYTES = _PLACES * _PLACE.size
_NONE = [0, 0]


class Tally:
    def __init__(self, path: Path, workers: int) -> None:
        self._path = path
        self._regions = 2 * workers + 2  # at a reload the old workers and the new ones live side by side
        self._map: mmap.mmap | None = None
        self._mine: int | None = None
        self._apart: dict[int, list[int]] = {}  # what found no place: counted by this worker alone

    @contextmanager
    def counted(self, kind: str, tenant: str, most: int) -> Iterator[bool]:
        """Counted in while the block lasts; false, and not counted, if there would be more than `most`."""
        entered = self.enter(kind, tenant, most)
        try:
            yield entered
        finally:
            if entered:
                self.leave(kind, tenant)

    def enter(self, kind: str, tenant: str, most: int) -> bool:
        self._add(kind, tenant, 1)
        if self.count(kind, tenant) <= most:
            return True
        self._add(kind, tenant, -1)
        return False

    def leave(self, kind: str, tenant: str) -> None:
        self._add(kind, tenant, -1)

    def count(self, kind: str, tenant: str) -> int:
        shared, key, which = self._opened(), _key(tenant), KINDS.index(kind)
        found = self._apart.get(key, _NONE)[which]
        for region in range(self._regions):
            window = _WINDOW.unpack_from(shared, _window_at(region, key))
            if key in window[::3]:
                found += window[3 * window[::3].index(key) + 1 + which]
        return found

    def _add(self, kind: str, tenant: str, change: int) -> None:
        shared, key, which = self._opened(), _key(tenant), KINDS.index(kind)
        offset = None if key in self._apart else self._place(shared, key)
        counts = list(
            self._apart.get(key, _NONE) if offset is None else _PLACE.unpack_from(shared, offset)[1:]
        )
        counts[which] = max(0, counts[which] + change)
        if offset is not None:
            _PLACE.pack_into(shared, offset, key, *counts)
        elif any(counts):
            self._apart[key] = counts
        else:
            self._apart.pop(key, None)

    def _place(self, shared: mmap.mmap, key: int) -> int | None:
        """The tenant's own, else one that nobody uses now; None if all are in use."""
        if self._mine is None:
            return None
        start = _window_at(self._mine, key)
        window = _WINDOW.unpack_from(shared, start)
        if key in window[::3]:
            return start + window[::3].index(key) * _PLACE.size
        unused = (at for at in range(_TRIES) if not window[3 * at + 1] and not window[3 * at + 2])
        at = next(unused, None)
        return None if at is None else start + at * _PLACE.size

    def _opened(self) -> mmap.mmap:
        """Mapped at first use: gunicorn forks between the wiring and the first request."""
        if self._map is None:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            size = self._regions * _REGION_BYTES
            if os.fstat(file).st_size < size:
                os.truncate(file, size)
            shared = mmap.mmap(file, size)
            self._mine = self._take_region(file, shared)
            self._map = shared
        return self._map

    def _take_region(self, file: int, shared: mmap.mmap) -> int | None:
        """The lowest that nobody holds. Its lock, and so the file, is held until the process ends."""
        fcntl.lockf(file, fcntl.LOCK_EX, 1, self._regions)  # one worker at a time comes by here
        free = [region for region in range(self._regions) if _lock(file, region)]
        for region in free:
            start = region * _REGION_BYTES
            shared[start : start + _REGION_BYTES] = bytes(_REGION_BYTES)
        for region in [*free[1:], self._regions]:
            fcntl.lockf(file, fcntl.LOCK_UN, 1, region)
        return free[0] if free else None


def _lock(file: int, region: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, region)
    except OSError:
        return False
    return True


def _window_at(region: int, key: int) -> int:
    """Where the few places begin in which a tenant's counters can be."""
    return region * _REGION_BYTES + key % (_PLACES - _TRIES) * _PLACE.size


@functools.lru_cache(maxsize=_PLACES)
def _key(tenant: str) -> int:
    return int.from_bytes(hashlib.blake2b(tenant.encode(), digest_size=8).digest(), "little") | 1
