"""What a server holds: memory, threads, descriptors, directories, its database, and leaks."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

import memory
from common import Stack


@dataclass(frozen=True)
class Footprint:
    memory: int  # bytes of keeper and web, shared pages by share
    threads: int
    descriptors: int
    directories: int
    volumes: int
    containers: int
    database: int  # bytes, with its log
    leaks: int


# How much more there may be at the end than near the beginning: a share, and so much besides.
TOLERANCE = Footprint(
    memory=24 << 20,
    threads=6,
    descriptors=24,
    directories=0,
    volumes=0,
    containers=0,
    database=5 << 20,
    leaks=0,
)
MEMORY_SHARE = 0.1
CONNECTIONS = 4  # of each open session, two for each of two workers: they are kept for the next command
TOMBSTONE = 2 << 10  # bytes of the database that each session leaves for 7 days, indexes included


def look(stack: Stack) -> Footprint:
    """Settled: what waits in the pool is in somebody's hand, and counts on its own."""
    stack.wait_without_leaks()
    state = stack.dir / "state"
    pids = memory.in_groups(process.pid for process in stack.processes.values())
    pooled = int(stack.env["SANDBOX_POOL_MAX"])
    return Footprint(
        memory=sum(memory.pss(pid) for pid in pids),
        threads=sum(len(os.listdir(f"/proc/{pid}/task")) for pid in pids),
        descriptors=sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        directories=max(0, len(stack.directories()) - pooled),
        volumes=len(os.listdir(state / "volumes")),
        containers=max(0, len(stack.containers()) - pooled),
        database=sum(path.stat().st_size for path in Path(state / "store").glob("store.db*")),
        leaks=len(stack.leaks()),
    )


def grown(early: Footprint, late: Footprint, sessions: int) -> dict[str, tuple[int, int, int, bool]]:
    """By name: how much there was, how much there is, how much there may be, and whether that holds."""
    found = {}
    for name, before in asdict(early).items():
        limit = before + getattr(TOLERANCE, name)
        limit += int(before * MEMORY_SHARE) if name == "memory" else 0
        limit += sessions * TOMBSTONE if name == "database" else 0
        limit += early.containers * CONNECTIONS if name == "descriptors" else 0
        now = getattr(late, name)
        found[name] = (before, now, limit, now <= limit)
    return found
