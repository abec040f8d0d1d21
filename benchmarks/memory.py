"""Who holds how much memory for idle sessions. Where many are alike, shared pages count by share (PSS)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Usage:
    """Bytes, of all sessions together."""

    shims: int
    guests: int
    server: int
    engine: int


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    group: int
    name: str


def look(containers: Iterable[str], groups: Iterable[int]) -> Usage:
    """`containers` are ids of running containers, `groups` the process groups of keeper and web."""
    everything = _processes()
    shims = {_container_of(one.pid): one.pid for one in everything if one.name.startswith("containerd-shim")}
    mine = [shims[container] for container in containers if container in shims]
    wanted = set(groups)
    return Usage(
        shims=sum(pss(pid) for pid in mine),
        guests=sum(pss(pid) for pid in _below(mine, everything)),
        server=sum(_rss(one.pid) for one in everything if one.group in wanted),
        engine=sum(_rss(one.pid) for one in everything if one.name in ("dockerd", "containerd")),
    )


def in_groups(groups: Iterable[int]) -> list[int]:
    """The processes of these process groups."""
    wanted = set(groups)
    return [one.pid for one in _processes() if one.group in wanted]


def available() -> int:
    for line in (_PROC / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def _processes() -> list[Process]:
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                raw = (entry / "stat").read_text()
                name, _, rest = raw.partition("(")[2].rpartition(")")
                _, parent, group, *_ = rest.split()
                found.append(Process(int(entry.name), int(parent), int(group), name))
    return found


def _container_of(shim: int) -> str:
    with contextlib.suppress(OSError, ValueError):
        words = (_PROC / str(shim) / "cmdline").read_text().split("\0")
        return words[words.index("-id") + 1]
    return ""


def _below(parents: Iterable[int], everything: list[Process]) -> list[int]:
    """The guest is its shim's child, the session's shells are the guest's."""
    children: dict[int, list[int]] = {}
    for one in everything:
        children.setdefault(one.parent, []).append(one.pid)
    found: list[int] = []
    waiting = list(parents)
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def pss(pid: int) -> int:
    """Only root may read another user's."""
    with contextlib.suppress(OSError):
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


def _rss(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
