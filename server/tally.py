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
_PLACES = 4096  # tenants in a region, give or take; those beyond share a counter
_TRIES = 8
_PLACE = struct.Struct("<QII")
_WINDOW = struct.Struct("<" + "QII" * _TRIES)
_REGION_BYTES = _PLACES * _PLACE.size


class Tally:
    def __init__(self, path: Path, workers: int) -> None:
        self._path = path
        self._regions = 2 * workers + 2  # at a reload the old workers and the new ones live side by side
        self._map: mmap.mmap | None = None
        self._mine = 0

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
        shared, key = self._opened(), _key(tenant)
        which = 1 + KINDS.index(kind)
        found = 0
        for region in range(self._regions):
            window = _WINDOW.unpack_from(shared, _window_at(region, key))
            if key in window[::3]:
                found += window[3 * window[::3].index(key) + which]
        return found

    def _add(self, kind: str, tenant: str, change: int) -> None:
        shared, key = self._opened(), _key(tenant)
        offset = self._place(shared, key)
        counts = list(_PLACE.unpack_from(shared, offset)[1:])
        counts[KINDS.index(kind)] = max(0, counts[KINDS.index(kind)] + change)
        _PLACE.pack_into(shared, offset, key, *counts)

    def _place(self, shared: mmap.mmap, key: int) -> int:
        """The tenant's own, else one that nobody uses now, else the last one, which is then shared."""
        start = _window_at(self._mine, key)
        window = _WINDOW.unpack_from(shared, start)
        if key in window[::3]:
            return start + window[::3].index(key) * _PLACE.size
        unused = (at for at in range(_TRIES) if not window[3 * at + 1] and not window[3 * at + 2])
        return start + next(unused, _TRIES - 1) * _PLACE.size

    def _opened(self) -> mmap.mmap:
        """Mapped at first use: gunicorn forks between the wiring and the first request."""
        if self._map is None:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            size = self._regions * _REGION_BYTES
            if os.fstat(file).st_size < size:
                os.truncate(file, size)
            self._map = mmap.mmap(file, size)
            self._mine = self._take_region(file, self._map)
        return self._map

    def _take_region(self, file: int, shared: mmap.mmap) -> int:
        """The lowest that nobody holds. Its lock, and so the file, is held until the process ends."""
        fcntl.lockf(file, fcntl.LOCK_EX, 1, self._regions)  # one worker at a time comes by here
        free = [region for region in range(self._regions) if _lock(file, region)]
        if not free:
            raise RuntimeError(f"{self._path} is held by more workers than SANDBOX_WEB_WORKERS says")
        for region in free:
            start = region * _REGION_BYTES
            shared[start : start + _REGION_BYTES] = bytes(_REGION_BYTES)
        for region in [*free[1:], self._regions]:
            fcntl.lockf(file, fcntl.LOCK_UN, 1, region)
        return free[0]


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
