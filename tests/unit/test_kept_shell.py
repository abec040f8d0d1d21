"""What a shell was like is kept beside its volume's files: whole or not at all, and for good when it must."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.keeper.volumes import kept


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    place = tmp_path / "volume"
    place.mkdir()
    return place


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk that is soon full."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)], check=True, timeout=30)
    yield place
    subprocess.run(["umount", str(place)], check=True, timeout=30)


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was brought to disk, in that order."""
    seen: list[str] = []
    really = os.fsync

    def fsync(file: int) -> None:
        seen.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
        really(file)

    monkeypatch.setattr(os, "fsync", fsync)
    return seen


def test_it_is_never_seen_half_written(volume: Path) -> None:
    """A keeper that is killed in the middle leaves what was there before."""
    states = [b"a" * (1 << 20), b"b" * (1 << 20)]
    kept.write(volume, states[0])
    over = threading.Event()

    def write() -> None:
        for number in range(60):
            kept.write(volume, states[number % 2])
        over.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not over.is_set():
        assert kept.read(volume) in states
    thread.join(30)
    assert os.listdir(volume) == ["shell"]
    assert (volume / "shell").stat().st_mode & 0o777 == 0o600


def test_going_cold_brings_it_to_disk_and_pausing_does_not(volume: Path, flushed: list[str]) -> None:
    kept.write(volume, b"state")
    assert flushed == []
    assert kept.settle(volume)
    assert flushed == ["shell", "volume"]


def test_nothing_is_nothing_to_settle(volume: Path) -> None:
    assert not kept.settle(volume)
    kept.write(volume, b"")
    assert not kept.settle(volume)
    assert not kept.settle(volume / "gone")
    kept.write(volume / "gone", b"state")
    assert kept.read(volume / "gone") == b""


def test_what_a_full_disk_has_no_room_for_is_not_kept_nor_is_what_was_before(small: Path) -> None:
    kept.write(small, b"earlier")
    (small / "filler").write_bytes(b"x" * 40960)
    kept.write(small, b"y" * 40960)
    assert kept.read(small) == b"" and not kept.settle(small)
    assert os.listdir(small) == ["filler"]


@pytest.mark.parametrize("name", ["shell", "shell.new"])
def test_no_link_is_followed(volume: Path, tmp_path: Path, name: str) -> None:
    treasure = tmp_path / "treasure"
    treasure.write_bytes(b"gold")
    (volume / name).symlink_to(treasure)
    assert kept.read(volume) == b""
    kept.write(volume, b"state")
    assert (treasure.read_bytes(), kept.read(volume)) == (b"gold", b"state")
