"""Everything a command printed, within a bound: the first half of it, the last half, and what is missing.

Positions count the bytes of all streams together, in the order in which they arrived; each byte keeps its
position for ever. A command is never held up by its log or by those who read it: beyond the bound the oldest
bytes after the first half make room, and a reader who comes too late is told which ones it missed.
Small logs stay in memory. Larger ones go to a file without a name, which is gone when the guest is. That lies
on the host's disk, which holds more important things: while it has little room left, no log grows there.
"""

from __future__ import annotations

import errno
import os
import threading
from array import array
from bisect import bisect_right
from typing import BinaryIO, NamedTuple, Tuple

from .bell import Bell

STREAMS = ("stdout", "stderr")
EVER = 1 << 62  # no log gets that long: who waits for more waits for the end
_IN_MEMORY = 64 << 10
_LOOK_BYTES = 256 << 10  # that a file may grow from one look at the room on its disk to the next
_SPARED_SHARE = 20  # of the disk, a twentieth is not for logs,
_SPARED_BYTES = 1 << 30  # but not more than this
_MOST_PIECES = 512  # in one batch
_MOST_TURNS = 16 << 10  # for each half: a command that changes streams with every byte is bounded too

Piece = Tuple[str, bytes]


class Batch(NamedTuple):
    """What follows a position. `begin` is beyond what was asked for when bytes are missing in between."""

    begin: int
    pieces: list[Piece]


class Spool:
    """Bytes at offsets: in memory while they are few, then in a file."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._memory = bytearray()
        self._file: BinaryIO | None = None
        self._good_for = 0  # how large the file may become before its disk is looked at

    def write(self, offset: int, data: bytes) -> None:
        """Raises OSError where there is no room; what was written before stays."""
        end = offset + len(data)
        if end > max(_IN_MEMORY, self._good_for):
            _need_room(self._place, end + _LOOK_BYTES - self._good_for)
            self._good_for = end + _LOOK_BYTES
        if self._file is None and end > _IN_MEMORY:
            from tempfile import TemporaryFile  # here: what it loads would make every start longer

            file = TemporaryFile(buffering=0, dir=self._place)  # noqa: SIM115 - closed with the log
            try:
                _write_all(file.fileno(), bytes(self._memory), 0)
            except OSError:
                file.close()
                raise
            self._file, self._memory = file, bytearray()
        if self._file is None:
            self._memory.extend(bytes(max(0, offset - len(self._memory))))
            self._memory[offset : offset + len(data)] = data
        else:
            _write_all(self._file.fileno(), data, offset)

    def read(self, offset: int, size: int) -> bytes:
        if self._file is None:
            return bytes(self._memory[offset : offset + size])
        return os.pread(self._file.fileno(), size, offset)

    def close(self) -> None:
        self._memory = bytearray()
        if self._file is not None:
            self._file.close()
            self._file = None


def _need_room(place: str, size: int) -> None:
    disk = os.statvfs(place)
    spared = min(disk.f_blocks * disk.f_frsize // _SPARED_SHARE, _SPARED_BYTES)
    if disk.f_bavail * disk.f_frsize < spared + size:
        raise OSError(errno.ENOSPC, "what is left of the disk is not for logs")


def _write_all(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


class Log:
    def __init__(self, limit: int, place: str) -> None:
        self._spool = Spool(place)
        self._head = limit - limit // 2  # what is before this position is never overwritten
        self._ring = limit // 2
        self._kept_from = self._head  # and behind the head, what is before this one is
        self._head_turns = array("Q")  # where another stream takes over: the position, then a bit for which
        self._ring_turns = array("Q")
        self._lock = threading.Lock()
        self._bells: list[Bell] = []
        self._speaker = -1
        self.total = 0
        self.counts = [0, 0]  # for each stream
        self.ended = False

    @classmethod
    def lost(cls, counts: list[int]) -> Log:
        """One that has ended and of which nothing is kept, but how much there was."""
        log = cls(0, "")
        log.counts, log.total = counts, sum(counts)
        log.ended = True
        log.close()
        return log

    def add(self, stream: str, chunk: bytes) -> None:
        speaker = STREAMS.index(stream)
        with self._lock:
            self.counts[speaker] += len(chunk)
            room = self._head - self.total
            if room > 0:
                self._add_to_head(speaker, chunk[:room])
                chunk = chunk[room:]
            if chunk:
                self._add_to_ring(speaker, chunk)
            for bell in self._bells:
                if self.total > bell.after:
                    bell.ring()

    def end(self) -> None:
        with self._lock:
            self.ended = True
            for bell in self._bells:
                bell.ring()

    def close(self) -> None:
        """Let go of everything that was kept; how much there was is still known."""
        with self._lock:
            self._head, self._ring, self._kept_from = 0, 0, self.total
            self._head_turns, self._ring_turns = array("Q"), array("Q")
            self._spool.close()

    @property
    def missing(self) -> list[tuple[int, int]]:
        with self._lock:
            gap = (self._head, min(self._kept_from, self.total))
        return [gap] if gap[0] < gap[1] else []

    def read(self, after: int, limit: int) -> Batch:
        """What is kept behind a position, at most `limit` bytes of it."""
        with self._lock:
            return self._batch(after, limit)

    def wait(self, after: int, seconds: float, peer: int) -> None:
        """Until there are more bytes than `after`, the end has come, or time is up. `peer` is who waits."""
        with Bell(after) as bell:
            with self._lock:
                if self.total > after or self.ended:
                    return
                self._bells.append(bell)
            try:
                bell.wait(seconds, peer)
            finally:
                with self._lock:
                    self._bells.remove(bell)

    def _batch(self, after: int, limit: int) -> Batch:
        if after < self._head:
            begin, stop, turns = after, min(self._head, self.total), self._head_turns
        else:
            begin, stop, turns = max(after, min(self._kept_from, self.total)), self.total, self._ring_turns
        stop = min(stop, begin + limit)
        pieces: list[Piece] = []
        at = begin
        which = bisect_right(turns, at << 1 | 1) - 1
        while at < stop and len(pieces) < _MOST_PIECES:
            until = min(stop, turns[which + 1] >> 1) if which + 1 < len(turns) else stop
            pieces.append((STREAMS[turns[which] & 1], self._stored(at, until)))
            at, which = until, which + 1
        return Batch(begin, pieces)

    def _stored(self, begin: int, stop: int) -> bytes:
        if begin < self._head:
            return self._spool.read(begin, stop - begin)
        offset = (begin - self._head) % self._ring
        first = min(stop - begin, self._ring - offset)
        data = self._spool.read(self._head + offset, first)
        return data if begin + first == stop else data + self._spool.read(self._head, stop - begin - first)

    def _add_to_head(self, speaker: int, chunk: bytes) -> None:
        if speaker != self._speaker:
            if len(self._head_turns) >= _MOST_TURNS:
                self._head = self._kept_from = self.total
                self._add_to_ring(speaker, chunk)
                return
            self._head_turns.append(self.total << 1 | speaker)
            self._speaker = speaker
        try:
            self._spool.write(self.total, chunk)
        except OSError:
            self._stop_storing()
        self.total += len(chunk)

    def _add_to_ring(self, speaker: int, chunk: bytes) -> None:
        if speaker != self._speaker or not self._ring_turns:
            self._ring_turns.append(self.total << 1 | speaker)
            self._speaker = speaker
        try:
            self._store_in_ring(chunk[-self._ring :] if self._ring else b"", self.total + len(chunk))
        except OSError:
            self._stop_storing()
        self.total += len(chunk)
        self._kept_from = max(self._kept_from, self.total - self._ring)
        if len(self._ring_turns) > _MOST_TURNS:
            self._kept_from = max(self._kept_from, self._ring_turns[_MOST_TURNS // 2] >> 1)
        if len(self._ring_turns) > 1 and self._ring_turns[1] >> 1 <= self._kept_from:
            del self._ring_turns[: bisect_right(self._ring_turns, self._kept_from << 1 | 1) - 1]

    def _store_in_ring(self, chunk: bytes, stop: int) -> None:
        if not chunk:
            return
        offset = (stop - len(chunk) - self._head) % self._ring
        first = self._ring - offset
        self._spool.write(self._head + offset, chunk[:first])
        if len(chunk) > first:
            self._spool.write(self._head, chunk[first:])

    def _stop_storing(self) -> None:
        """No room on the disk: the first half stays, as far as it came; the rest is counted as missing."""
        self._head, self._ring = min(self._head, self.total), 0
