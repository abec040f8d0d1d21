"""Volumes on a real btrfs: made, given and tidied up by several at the same time."""

from __future__ import annotations

import secrets
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from server.keeper.volumes import FILES, Share
from server.keeper.volumes.on_btrfs import BtrfsVolumes

LIMIT = 8 << 20
MANY = 150


@pytest.fixture
def volumes(tmp_path: Path) -> Iterator[BtrfsVolumes]:
    image, place = tmp_path / "image", tmp_path / "volumes"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(512 << 20)
    subprocess.run(["mkfs.btrfs", "--quiet", str(image)], check=True, timeout=60)
    subprocess.run(["mount", "-o", "loop,nosuid,nodev", str(image), str(place)], check=True, timeout=60)
    try:
        yield BtrfsVolumes(place)
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=60)


def test_tidying_up_takes_nothing_from_a_volume_that_is_being_made(volumes: BtrfsVolumes) -> None:
    """Its group stands before it does, and accounts for nothing yet."""
    over = threading.Event()

    def tidy() -> None:
        while not over.is_set():
            volumes.tidy()

    def make(_: int) -> str:
        volume, share = secrets.token_hex(16), Share(1, 64 << 20, LIMIT)
        volumes.create(volume, Share(None, 0, LIMIT))
        volumes.give(volume, share)
        return volume

    with ThreadPoolExecutor(5) as pool:
        tidying = pool.submit(tidy)
        try:
            made = list(pool.map(make, range(MANY)))
        finally:
            over.set()
        tidying.result(60)
    with pytest.raises(OSError, match="quota"):
        (volumes.path(made[-1]) / FILES / "big").write_bytes(b"x" * 2 * LIMIT)
    assert all(volumes.used(volume) is not None for volume in made)


def test_what_volumes_leave_behind_is_tidied_up(volumes: BtrfsVolumes) -> None:
    volume = secrets.token_hex(16)
    volumes.create(volume, Share(1, 64 << 20, LIMIT))
    assert volumes.used(volume) is not None
    volumes.delete(volume)
    volumes.settle()
    for _ in range(50):  # the kernel frees in the background what was deleted
        volumes.tidy()
        if volumes.used(volume) is None:
            return
        volumes.settle()
    pytest.fail("the group of a volume that is gone stays")
