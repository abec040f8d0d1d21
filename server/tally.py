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
_COUNT = struct.Struct("<I")
_KEY_BYTES = 8


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
        shared, (key, name, place) = self._opened(), _spot(tenant)
        which = KINDS.index(kind)
        found = self._apart[key][which] if self._apart and key in self._apart else 0
        for start in range(place, len(shared), _REGION_BYTES):
            offset = _find(shared, start, name)
            if offset >= 0:
                found += _COUNT.unpack_from(shared, offset + _KEY_BYTES + _COUNT.size * which)[0]
        return found

    def _add(self, kind: str, tenant: str, change: int) -> None:
        shared, (key, name, place) = self._opened(), _spot(tenant)
        which = KINDS.index(kind)
        offset = -1 if key in self._apart else self._place(shared, name, place)
        if offset < 0:
            counts = self._apart.setdefault(key, [0, 0])
            counts[which] = max(0, counts[which] + change)
            if not any(counts):
                del self._apart[key]
            return
        at = offset + _KEY_BYTES + _COUNT.size * which
        _COUNT.pack_into(shared, at, max(0, _COUNT.unpack_from(shared, at)[0] + change))

    def _place(self, shared: mmap.mmap, name: bytes, place: int) -> int:
        """The tenant's own, else one that nobody uses now; -1 if all are in use."""
        if self._mine is None:
            return -1
        start = self._mine * _REGION_BYTES + place
        offset = _find(shared, start, name)
        if offset < 0:
            window = _WINDOW.unpack_from(shared, start)
            unused = (at for at in range(_TRIES) if not window[3 * at + 1] and not window[3 * at + 2])
            at = next(unused, None)
            offset = -1 if at is None else start + at * _PLACE.size
            if offset >= 0:
                shared[offset : offset + _KEY_BYTES] = name
        return offset

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


def _find(shared: mmap.mmap, start: int, name: bytes) -> int:
    """Where a tenant's counters are in a window that begins at `start`; -1 if they are not there."""
    offset = shared.find(name, start, start + _WINDOW.size)
    while offset >= 0 and (offset - start) % _PLACE.size:  # these bytes, but not in a key's place
        offset = shared.find(name, offset + 1, start + _WINDOW.size)
    return offset


@functools.lru_cache(maxsize=_PLACES)
def _spot(tenant: str) -> tuple[int, bytes, int]:
    """A tenant's key, as a number and as bytes, and where in a region the few places are that it may have."""
    name = hashlib.blake2b(tenant.encode(), digest_size=_KEY_BYTES).digest()
    key = int.from_bytes(name, "little") | 1
    return key, key.to_bytes(_KEY_BYTES, "little"), key % (_PLACES - _TRIES) * _PLACE.size
