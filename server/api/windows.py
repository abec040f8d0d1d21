"""Rate limit counters for flask-limiter that all web workers of a server share, in a file that they map.

Each worker counts in a lane of its own (see `lanes`); a counter is the sum over the lanes. No thread, no lock
and no system call; what is over is overwritten, and what a killed worker has counted stays counted.
"""

from __future__ import annotations

import math
import mmap
import struct
import time
from pathlib import Path

from limits.storage import Storage

from server.lanes import KEY_BYTES, TRIES, Lanes

_PLACES = 16384
_PLACE = struct.Struct("<QII")  # the key, when its window ends, how often it was hit
_VALUES = struct.Struct("<II")
_WINDOW = struct.Struct("<" + "QII" * TRIES)


class SharedStorage(Storage):
    STORAGE_SCHEME = ["embedded"]  # noqa: RUF012 - the name the library looks for

    def __init__(
        self,
        uri: str | None = None,
        wrap_exceptions: bool = False,
        path: str = "",
        workers: int = 1,
        **_: float | str | bool,
    ) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self._lanes = Lanes(Path(path), workers, _PLACES, _PLACE.size)
        self._apart = bytearray(_PLACES * _PLACE.size)  # the lane of a worker that found none free

    @property
    def base_exceptions(self) -> type[Exception]:
        return OSError

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        shared, now = self._lanes.opened(), time.time()
        name, place = self._lanes.spot(key)
        if self._lanes.mine is None:
            return self._add(self._apart, place, name, now, expiry, amount)
        self._add(shared, self._lanes.mine + place, name, now, expiry, amount)
        return self._sum(shared, name, place, now)

    def get(self, key: str) -> int:
        name, place = self._lanes.spot(key)
        return self._sum(self._lanes.opened(), name, place, time.time())

    def get_expiry(self, key: str) -> float:
        shared, (name, place) = self._lanes.opened(), self._lanes.spot(key)
        found = [_VALUES.unpack_from(shared, at + KEY_BYTES)[0] for at in self._all(shared, name, place)]
        return float(max(found, default=time.time()))

    def check(self) -> bool:
        return True

    def reset(self) -> int:
        shared = self._lanes.opened()
        shared[:] = bytes(len(shared))
        return 0

    def clear(self, key: str) -> None:
        shared, (name, place) = self._lanes.opened(), self._lanes.spot(key)
        for offset in self._all(shared, name, place):
            shared[offset : offset + _PLACE.size] = bytes(_PLACE.size)

    def _sum(self, shared: mmap.mmap, name: bytes, place: int, now: float) -> int:
        count = 0
        for offset in self._all(shared, name, place):
            until, hits = _VALUES.unpack_from(shared, offset + KEY_BYTES)
            count += hits if until > now else 0
        return count

    def _all(self, shared: mmap.mmap, name: bytes, place: int) -> list[int]:
        starts = range(place, len(shared), self._lanes.lane_bytes)
        return [at for start in starts if (at := self._lanes.find(shared, start, name)) >= 0]

    def _add(
        self, lane: mmap.mmap | bytearray, start: int, name: bytes, now: float, expiry: int, amount: int
    ) -> int:
        offset = self._lanes.find(lane, start, name)
        until, hits = _VALUES.unpack_from(lane, offset + KEY_BYTES) if offset >= 0 else (0, 0)
        if offset < 0:
            offset = _room(lane, start, now)
        if until <= now:
            until, hits = math.ceil(now) + expiry, 0
        lane[offset : offset + _PLACE.size] = name + _VALUES.pack(until, hits + amount)
        return int(hits + amount)


def _room(lane: mmap.mmap | bytearray, start: int, now: float) -> int:
    """A place whose window is over; else that of the one with the fewest hits, which is missed the least."""
    window = _WINDOW.unpack_from(lane, start)
    worth = [window[3 * at + 2] if window[3 * at + 1] > now else -1 for at in range(TRIES)]
    return start + worth.index(min(worth)) * _PLACE.size
