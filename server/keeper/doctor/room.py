"""Room on the disks of the state and the engine; the storage of workspaces, and if its limits are hard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from server.keeper.doctor import CRITICAL, MAJOR, MINOR, Finding, judged, unknown

_GIB = 1 << 30
_LITTLE, _TOO_LITTLE = 5 * _GIB, _GIB
_FEW = 0.1  # of all inodes


@dataclass(frozen=True)
class Stock:
    """What the keeper knows of the storage of workspaces; `concern` is what it says at its start."""

    hard: bool
    quotas: str
    concern: str | None
    room: tuple[int, int] | None


def space(id: str, place: str) -> Iterator[Finding]:
    try:
        told = os.statvfs(place)
    except OSError as exc:
        yield unknown(id, exc.strerror, "look whether that directory is there")
        return
    yield judge_space(
        id, told.f_bavail * told.f_frsize, told.f_favail / told.f_files if told.f_files else 1.0
    )


def judge_space(id: str, free: int, inodes: float) -> Finding:
    return judged(
        id,
        free >= _LITTLE and inodes >= _FEW,
        CRITICAL if free < _TOO_LITTLE or inodes < _FEW / 10 else MAJOR,
        f"{free >> 20} MiB and {inodes:.0%} of the inodes are free",
        f"{_LITTLE >> 20} MiB and {_FEW:.0%} of the inodes",
        "make room: docker system df, journalctl --vacuum-size=500M, or a larger disk",
    )


def storage(stock: Stock) -> Iterator[Finding]:
    yield judged(
        "storage.hard",
        stock.hard,
        MAJOR,
        "limits are hard" if stock.hard else stock.concern or "limits are soft",
        "limits are hard",
        "run the keeper as root on a kernel with btrfs, with btrfs-progs: docs/operations.md, Storage",
    )
    if not stock.hard:
        return
    yield judged(
        "storage.quotas",
        stock.quotas == "simple",
        MINOR,
        f"{stock.quotas} quotas",
        "simple quotas",
        "boot a kernel from 6.7 on: with full quotas, deleting many copies costs CPU",
    )
    if stock.room is not None:
        total, free = stock.room
        yield judged(
            "storage.room",
            free >= total * 0.2,
            CRITICAL if free < total * 0.1 else MAJOR,
            f"{free >> 20} of {total >> 20} MiB are free",
            "a fifth is free; below a tenth no session is opened",
            "delete snapshots and workspaces, or make the storage larger: docs/operations.md, Storage",
        )
