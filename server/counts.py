"""Numbers that only grow, counted by each web worker in files of its own and added up by whoever is asked.

A worker counts in the place that it holds by a lock, which the kernel lets go when the worker dies; whoever
starts next goes on in a free place, from the numbers that are there. So there are never more files than
places, nothing is lost with a worker, and no number ever falls. The files are those of the Prometheus
client's multiprocess mode, so that it can read them; counting costs no system call.
"""

from __future__ import annotations

import bisect
import fcntl
import logging
import mmap
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.utils import floatToGoString

_KINDS = ("counter", "histogram")
_FILE_BYTES = 512 << 10  # several times what all routes with all their answers need
_BROKEN = (OSError, RuntimeError, ValueError, struct.error)  # what reading a torn file ends with

_NUMBER = struct.Struct("d")
_pack = _NUMBER.pack

_log = logging.getLogger("sandbox.counts")


class Count:
    """One number. Only this process adds to it, and nothing here yields to another greenlet."""

    __slots__ = ("_begin", "_end", "_memory", "_value")

    def __init__(self, memory: mmap.mmap | bytearray, begin: int) -> None:
        self._memory = memory
        self._begin = begin
        self._end = begin + _NUMBER.size
        self._value: float = _NUMBER.unpack_from(memory, begin)[0]

    def add(self, amount: float = 1.0) -> None:
        self._value += amount
        self._memory[self._begin : self._end] = _pack(self._value)  # at once: no reader sees half of it


class Distribution:
    """How often a value lay below each of some bounds, and the sum of all values."""

    __slots__ = ("_bounds", "_buckets", "_sum")

    def __init__(self, bounds: Sequence[float], buckets: list[Count], total: Count) -> None:
        self._bounds = bounds
        self._buckets = buckets
        self._sum = total

    def note(self, value: float) -> None:
        self._buckets[bisect.bisect_left(self._bounds, value)].add()
        self._sum.add(value)


class Counts:
    """Without a directory they are this process's alone, and nobody reads them."""

    def __init__(self, directory: Path | None, places: int) -> None:
        self._directory = directory
        self._held: int | None = None
        self._files: dict[str, MmapedDict] = {}
        if directory is None:
            return
        try:
            self._open(directory, places)
        except OSError as exc:  # a full disk: counting is worth less than answering
            _log.error("metrics are not shared: %s", exc)

    def count(self, name: str, about: str, **labels: str) -> Count:
        return self._find("counter", _key(name.removesuffix("_total"), name, labels, about))

    def distribution(self, name: str, about: str, bounds: Sequence[float], **labels: str) -> Distribution:
        def find(part: str, **top: str) -> Count:
            return self._find("histogram", _key(name, f"{name}_{part}", {**labels, **top}, about))

        buckets = [find("bucket", le=_top(bound)) for bound in (*bounds, float("inf"))]
        return Distribution(bounds, buckets, find("sum"))

    def collect(self) -> Iterable[Metric]:
        """All that was ever counted, by this process and by all others, living or dead."""
        if self._directory is None:
            return []
        files = [str(path) for path in self._directory.glob("*.db")]
        found: Iterable[Metric] = MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
        return found

    def close(self) -> None:
        """Give up the place; what was found in its files must not be used any more."""
        while self._files:
            self._files.popitem()[1].close()  # type: ignore[no-untyped-call]
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _find(self, kind: str, key: str) -> Count:
        """A file that has to grow is mapped anew; what was found in it before stays good."""
        file = self._files.get(kind)
        if file is None:
            return Count(bytearray(_NUMBER.size), 0)
        file.read_value(key)  # type: ignore[no-untyped-call] # makes it, where it is not there yet
        return Count(file._m, file._positions[key])

    def _open(self, directory: Path, places: int) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        place = self._take_place(directory, places)
        for kind in _KINDS if place is not None else ():
            path = directory / f"{kind}_{place}.db"
            _allocate(path)
            self._files[kind] = MmapedDict(str(path))  # type: ignore[no-untyped-call]

    def _take_place(self, directory: Path, places: int) -> int | None:
        """The lowest that nobody holds. Its lock, and so the file, is held until the process ends."""
        file = os.open(directory / "places", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(file, fcntl.LOCK_EX, 1, places)  # one worker at a time comes by here
        free = [place for place in range(places) if _lock(file, place)]
        for place in free:
            _drop_torn(directory, place)
        for place in [*free[1:], places]:
            fcntl.lockf(file, fcntl.LOCK_UN, 1, place)
        self._held = file
        if not free:
            _log.error("metrics are not shared: all %d places are taken", places)
        return free[0] if free else None


def _top(bound: float) -> str:
    text: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
    return text


def _key(metric: str, name: str, labels: dict[str, str], about: str) -> str:
    return mmap_key(metric, name, list(labels), list(labels.values()), about)


def _lock(file: int, place: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except OSError:
        return False
    return True


def _allocate(path: Path) -> None:
    """For good: a page of a mapped file that finds no room on the disk would end the process."""
    if path.exists():
        return
    draft = path.with_suffix(".new")  # who reads meanwhile sees all of it or nothing
    file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(file, 0, _FILE_BYTES)
    finally:
        os.close(file)
    draft.rename(path)


def _drop_torn(directory: Path, place: int) -> None:
    """What a host that lost its power has left half written counts from nothing again."""
    for path in (directory / f"{kind}_{place}.db" for kind in _KINDS):
        try:
            MultiProcessCollector.merge([str(path)])  # type: ignore[no-untyped-call]
        except FileNotFoundError:
            continue
        except _BROKEN:
            _log.warning("a file of metrics was torn, and is begun anew")
            path.unlink(missing_ok=True)
