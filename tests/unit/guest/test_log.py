"""What a command printed, against a plain list of every byte: nothing moves, nothing is made up."""

from __future__ import annotations

import os
import random
import resource
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from server.guest import log as module
from server.guest.bell import HungUp
from server.guest.log import STREAMS, Log

Bytes = list[tuple[str, int]]


class Model:
    """A log beside a list of all that it was given."""

    def __init__(self, limit: int, place: Path) -> None:
        self.log = Log(limit, str(place))
        self.all: Bytes = []

    def add(self, stream: str, chunk: bytes) -> None:
        self.log.add(stream, chunk)
        self.all += [(stream, byte) for byte in chunk]

    def check(self, after: int, limit: int) -> None:
        """From a position to the end: what is read is what was added, what is left out is told as missing."""
        skipped: list[tuple[int, int]] = []
        at = after
        while at < len(self.all):
            batch = self.log.read(at, limit)
            if batch.begin > at:
                skipped.append((at, batch.begin))
            at = self._checked(batch.begin, batch.pieces, limit)
            assert at > after or batch.begin > after
            after = at
        missing = [
            (max(begin, first), end) for begin, end in self.log.missing for first in [after_of(skipped)]
        ]
        assert skipped == [] or skipped == missing

    def _checked(self, begin: int, pieces: list[tuple[str, bytes]], limit: int) -> int:
        at = begin
        for stream, data in pieces:
            assert data
            assert [(stream, byte) for byte in data] == self.all[at : at + len(data)]
            at += len(data)
        assert at - begin <= limit
        return at


def after_of(skipped: list[tuple[int, int]]) -> int:
    return skipped[0][0] if skipped else 0


def kept(log: Log) -> int:
    return log.total - sum(end - begin for begin, end in log.missing)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """The disk is full at this size: writes beyond it fail."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("seed", range(8))
def test_every_byte_keeps_its_place(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    for _ in range(60):
        monkeypatch.setattr(module, "_MOST_TURNS", chance.choice([4, 8, 1000]))
        monkeypatch.setattr(module, "_IN_MEMORY", chance.choice([5, 50, 1000]))
        limit = chance.choice([1, 2, 3, 10, 33, 100])
        model = Model(limit, tmp_path)
        for _ in range(chance.randint(1, 40)):
            model.add(chance.choice(STREAMS), chance.randbytes(chance.randint(1, 40)))
            model.check(chance.randint(0, len(model.all)), chance.randint(1, 50))
        assert model.log.total == len(model.all) == sum(model.log.counts)
        assert kept(model.log) <= limit
        model.log.close()


def test_the_counts_are_each_streams_own(tmp_path: Path) -> None:
    log = Log(10, str(tmp_path))
    log.add("stdout", b"x" * 7)
    log.add("stderr", b"y" * 100)
    assert (log.counts, log.total, log.missing) == ([7, 100], 107, [(5, 102)])


def test_within_the_limit_nothing_is_missing_beyond_it_the_middle_is(tmp_path: Path) -> None:
    model = Model(1 << 18, tmp_path)
    for number in range(1 << 12):
        model.add("stdout", b"%063d\n" % number)
    assert (model.log.missing, kept(model.log)) == ([], 1 << 18)
    model.check(0, 1 << 16)
    model.add("stderr", b"more")
    assert model.log.missing == [(1 << 17, (1 << 17) + 4)]
    model.check(0, 1 << 16)
    model.log.close()


def test_one_chunk_larger_than_the_whole_log_leaves_its_ends(tmp_path: Path) -> None:
    log = Log(10, str(tmp_path))
    log.add("stdout", bytes(range(100)))
    assert log.read(0, 100) == (0, [("stdout", bytes(range(5)))])
    assert log.read(5, 100) == (95, [("stdout", bytes(range(95, 100)))])


def test_a_large_log_is_in_a_file_without_a_name(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    log = Log(1 << 20, str(tmp_path))
    log.add("stdout", b"x" * 1000)
    assert set(os.listdir("/proc/self/fd")) == before
    log.add("stdout", b"x" * 100_000)
    assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    assert os.listdir(tmp_path) == []
    log.close()
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("seed", range(6))
def test_a_full_disk_costs_what_does_not_fit_and_nothing_else(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command goes on, and what is told of the log stays true."""
    chance = random.Random(seed)
    for _ in range(40):
        monkeypatch.setattr(module, "_IN_MEMORY", chance.choice([5, 50]))
        model = Model(chance.choice([33, 100, 200]), tmp_path)
        size = chance.randint(0, 220)
        with largest_file(size):
            for _ in range(chance.randint(1, 30)):
                model.add(chance.choice(STREAMS), chance.randbytes(chance.randint(1, 40)))
                model.check(chance.randint(0, len(model.all)), chance.randint(1, 50))
        model.check(0, 1000)
        assert model.log.total == len(model.all)
        model.log.close()


def test_what_was_kept_before_the_disk_was_full_is_still_there(tmp_path: Path) -> None:
    log = Log(1 << 20, str(tmp_path))
    log.add("stdout", b"a" * 100_000)
    with largest_file(150_000):
        log.add("stdout", b"b" * 100_000)
        log.add("stdout", b"c" * 1_000_000)
    assert log.read(0, 1 << 20) == (0, [("stdout", b"a" * 100_000)])
    assert (log.missing, log.total) == ([(100_000, 1_200_000)], 1_200_000)
    log.close()


def test_a_place_that_is_gone_is_as_good_as_a_full_disk(tmp_path: Path) -> None:
    log = Log(1 << 20, str(tmp_path / "gone"))
    log.add("stdout", b"a" * 1000)
    log.add("stdout", b"b" * 100_000)
    assert log.read(0, 5000) == (0, [("stdout", b"a" * 1000)])
    assert log.missing == [(1000, 101_000)]


def test_a_command_that_changes_streams_with_every_byte_is_bounded(tmp_path: Path) -> None:
    log = Log(1 << 20, str(tmp_path))
    for number in range(200_000):
        log.add(STREAMS[number % 2], bytes([number % 251]))
    assert len(log._head_turns) <= module._MOST_TURNS and len(log._ring_turns) <= module._MOST_TURNS
    [(begin, end)] = log.missing
    for at in (0, begin - 100, end, log.total - 100):
        batch = log.read(at, 100)
        expected = [(STREAMS[i % 2], bytes([i % 251])) for i in range(at, at + 100)]
        assert (batch.begin, batch.pieces) == (at, expected)
    assert log.read(begin, 100).begin == end
    log.close()


def test_a_closed_log_knows_how_much_there_was_and_has_nothing(tmp_path: Path) -> None:
    log = Log(1000, str(tmp_path))
    log.add("stdout", b"x" * 5000)
    log.end()
    log.close()
    log.close()
    assert (log.total, log.missing, log.read(0, 100)) == (5000, [(0, 5000)], (5000, []))


def test_reading_behind_the_end_gives_nothing(tmp_path: Path) -> None:
    log = Log(100, str(tmp_path))
    log.add("stdout", b"abc")
    assert log.read(3, 10) == (3, [])
    assert log.read(50, 10).pieces == []


# Waiting.


@pytest.fixture
def peer() -> Iterator[tuple[int, socket.socket]]:
    """The descriptor of a connection, and the other end of it."""
    here, there = socket.socketpair()
    with here, there:
        yield here.fileno(), there


def test_who_waits_is_woken_by_news_and_not_by_what_it_has(
    tmp_path: Path, peer: tuple[int, socket.socket]
) -> None:
    log = Log(100, str(tmp_path))
    log.add("stdout", b"abc")
    began = time.monotonic()
    log.wait(2, 30, peer[0])
    log.wait(3, 0.1, peer[0])
    assert 0.1 <= time.monotonic() - began < 20
    threading.Timer(0.1, log.add, ("stderr", b"d")).start()
    log.wait(3, 30, peer[0])
    assert log.total == 4
    threading.Timer(0.1, log.end).start()
    log.wait(1 << 60, 30, peer[0])
    log.wait(4, 30, peer[0])
    assert log.ended and time.monotonic() - began < 25


def test_who_hangs_up_is_not_waited_for(tmp_path: Path, peer: tuple[int, socket.socket]) -> None:
    log = Log(100, str(tmp_path))
    threading.Timer(0.1, peer[1].close).start()
    with pytest.raises(HungUp):
        log.wait(0, 30, peer[0])
    assert log._bells == []


def test_waiting_leaves_no_descriptor_behind(tmp_path: Path, peer: tuple[int, socket.socket]) -> None:
    log, before = Log(100, str(tmp_path)), len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        log.wait(0, 0.001, peer[0])
    assert len(os.listdir("/proc/self/fd")) == before


def follow(log: Log, fd: int, found: list[Bytes]) -> None:
    """As a reader does it: wait, read, until the end."""
    seen: Bytes = []
    while not (log.ended and len(seen) >= log.total):
        log.wait(len(seen), 10, fd)
        batch = log.read(len(seen), 777)
        assert batch.begin == len(seen)
        seen += [(stream, byte) for stream, data in batch.pieces for byte in data]
    found.append(seen)


def test_readers_who_follow_while_it_grows_see_every_byte_once(
    tmp_path: Path, peer: tuple[int, socket.socket]
) -> None:
    model, found, chance = Model(1 << 20, tmp_path), [], random.Random(1)
    readers = [threading.Thread(target=follow, args=(model.log, peer[0], found)) for _ in range(4)]
    for reader in readers:
        reader.start()
    for _ in range(300):
        model.add(chance.choice(STREAMS), chance.randbytes(chance.randint(1, 900)))
    model.log.end()
    for reader in readers:
        reader.join(30)
    assert found == [model.all] * 4
    model.log.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Of 64 MiB. A twentieth of it is spared."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(tmp_path)], check=True, timeout=30)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True, timeout=30)


def test_logs_never_fill_the_disk_they_lie_on(small_disk: Path) -> None:
    logs = [Log(64 << 20, str(small_disk)) for _ in range(3)]
    for _ in range(512):
        for log in logs:
            log.add("stdout", b"x" * 65536)
    room = os.statvfs(small_disk)
    assert 2 << 20 < room.f_bavail * room.f_frsize < 5 << 20, "they took what there was, but not the last"
    for log in logs:
        begin, end = log.missing[0]
        assert begin >= 64 << 10 and end == log.total == 32 << 20
        assert log.read(0, 1000).pieces == [("stdout", b"x" * 1000)]
        assert log.read(begin, 1000).pieces == []
        log.close()


def test_a_log_of_full_size_goes_on_turning_when_the_disk_is_full(small_disk: Path) -> None:
    log = Log(1 << 20, str(small_disk))
    log.add("stdout", b"x" * (2 << 20))
    (small_disk / "other").write_bytes(bytes(62 << 20))
    log.add("stdout", b"the end")
    assert log.read(log.total - 7, 100).pieces == [("stdout", b"the end")]
    log.close()
