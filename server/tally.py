"""How much of something each tenant has in use right now, counted over all web workers without a lock.

Each worker counts in a lane of its own. Whoever starts clears what the dead have left. So nothing that a
crash leaves behind is counted for long, and counting costs no system call.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from server.lanes import KEY_BYTES, TRIES, Lanes

KINDS = ("executions", "streams")
_PLACES = 4096  # tenants, users and sessions in a lane, give or take
_PLACE = struct.Struct("<QII")
_WINDOW = struct.Struct("<" + "QII" * TRIES)
_COUNT = struct.Struct("<I")


class Tally:
    def __init__(self, path: Path, workers: int) -> None:
        self._lanes = Lanes(path, workers, _PLACES, _PLACE.size, self._clear)
        self._apart: dict[bytes, list[int]] = {}  # what found no place: counted by this worker alone

    def _clear(self, shared: mmap.mmap, free: Iterable[int]) -> None:
        for start in free:
            shared[start : start + self._lanes.lane_bytes] = bytes(self._lanes.lane_bytes)

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
        shared, (key, place) = self._lanes.opened(), self._lanes.spot(tenant)
        which = KINDS.index(kind)
        found = self._apart[key][which] if self._apart and key in self._apart else 0
        for start in range(place, len(shared), self._lanes.lane_bytes):
            offset = self._lanes.find(shared, start, key)
            if offset >= 0:
                found += _COUNT.unpack_from(shared, offset + KEY_BYTES + _COUNT.size * which)[0]
        return found

    def _add(self, kind: str, tenant: str, change: int) -> None:
        shared, (key, place) = self._lanes.opened(), self._lanes.spot(tenant)
        which = KINDS.index(kind)
        offset = -1 if key in self._apart else self._place(shared, key, place)
        if offset < 0:
            counts = self._apart.setdefault(key, [0, 0])
            counts[which] = max(0, counts[which] + change)
            if not any(counts):
                del self._apart[key]
            return
        at = offset + KEY_BYTES + _COUNT.size * which
        _COUNT.pack_into(shared, at, max(0, _COUNT.unpack_from(shared, at)[0] + change))

    def _place(self, shared: mmap.mmap, key: bytes, place: int) -> int:
        """The tenant's own, else one that nobody uses now; -1 if all are in use."""
        if self._lanes.mine is None:
            return -1
        start = self._lanes.mine + place
        offset = self._lanes.find(shared, start, key)
        if offset < 0:
            window = _WINDOW.unpack_from(shared, start)
            unused = (at for at in range(TRIES) if not window[3 * at + 1] and not window[3 * at + 2])
            at = next(unused, None)
            offset = -1 if at is None else start + at * _PLACE.size
            if offset >= 0:
                shared[offset : offset + KEY_BYTES] = key
        return offset
