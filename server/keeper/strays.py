"""What lies beside sandboxes and volumes that are owned, and does not belong there: found, and removed.

A second mount over a sandbox's place hides the session's files from it; a second loop device holds the
storage's file when nobody uses it any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections import Counter
from collections.abc import Set
from pathlib import Path

from server.config import Config
from server.keeper import mounts

_LOOP_CLR_FD = 0x4C01

_log = logging.getLogger("sandbox.reconcile")


def mounts_by_place(config: Config) -> Counter[Path]:
    """How many are on top of each other at each place that belongs to a sandbox, whosever it is."""
    return Counter(place for place in mounts.below(config.sandboxes_dir) if place != config.sandboxes_dir)


def sandbox_at(config: Config, place: Path) -> str:
    return place.relative_to(config.sandboxes_dir).parts[0]


def unused_devices(config: Config) -> set[str]:
    """Loop devices on our storage that are not what is mounted as it."""
    ours = str(config.storage_image)
    found = set()
    for told in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if told.read_text().strip().removesuffix(" (deleted)") == ours:
                found.add(f"/dev/{told.parts[3]}")
    return found - mounts.sources_of(config.volumes_dir)


def remove_strays(config: Config, owned: Set[str]) -> int:
    """How many there were. `owned`: sandboxes of sessions that nobody is at work on right now."""
    found = 0
    for place, times in mounts_by_place(config).items():
        if times > 1 and sandbox_at(config, place) in owned:
            _log.warning(
                "took away what was mounted over a workspace", extra={"fields": {"count": times - 1}}
            )
            for _ in range(times - 1):
                mounts.lift(place)
            found += times - 1
    for device in unused_devices(config):
        _log.warning("let go of a stray device", extra={"fields": {"device": device}})
        _let_go(device)
        found += 1
    return found


def _let_go(device: str) -> None:
    """One that somebody still has open goes when it is closed."""
    with contextlib.suppress(OSError):  # gone meanwhile
        file = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(file, _LOOP_CLR_FD)
        finally:
            os.close(file)
