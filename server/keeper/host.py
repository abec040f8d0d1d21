"""What the host has for sessions: its memory and its CPUs. No more memory is promised than there is.

Sessions are admitted in the transaction that reserves them (`quota_rows`), by what is written down here. Warm
sandboxes take what sessions leave, and make way for them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from server.config import Config
from server.keeper.pool import Pool, Warm
from server.keeper.runtime import Runtime
from server.quota_rows import QuotaRows

_LEAST_RESERVE, _MOST_RESERVE = 256 << 20, 4 << 30
_CGROUPS = Path("/sys/fs/cgroup")


class Host:
    def __init__(self, config: Config, rows: QuotaRows, runtime: Runtime, freed: Callable[[], None]) -> None:
        self.freed = freed  # is to be called when a sandbox is gone
        self._config = config
        self._rows = rows
        self._runtime = runtime
        self._memory = 0

    def describe(self) -> None:
        """Looked at now and then: memory comes and goes in virtual machines and control groups."""
        self._memory = memory_for_sessions(self._config, memory_of_machine())
        self._rows.describe_host(self._memory, self._runtime.cpus())

    def has_room_for_warm(self, warm: int) -> bool:
        """For one more than so many."""
        return self._rows.promised() + (warm + 1) * self._config.memory <= self._memory

    def make_way(self, pool: Pool, discard: Callable[[Warm], None]) -> None:
        """Before a sandbox is made for a session: warm ones go until there is room for all."""
        while (waiting := pool.waiting()) and not self.has_room_for_warm(len(waiting) - 1):
            if pool.drop(waiting[0]):
                discard(waiting[0])


def memory_for_sessions(config: Config, total: int) -> int:
    reserve = config.memory_reserve or min(max(total // 10, _LEAST_RESERVE), _MOST_RESERVE)
    return max(0, int((total - reserve) * config.memory_overcommit))


def memory_of_machine(cgroups: Path = _CGROUPS, process: Path = Path("/proc/self/cgroup")) -> int:
    """The machine's, or what the keeper's control groups let it have, if that is less."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    total = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemTotal:"))
    return min([total, *_limits(cgroups, process.read_text())])


def _limits(cgroups: Path, groups: str) -> list[int]:
    """Of every group that this process is in, up to the root; of both versions of control groups."""
    found = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        place = root / path.lstrip("/")
        for directory in (place, *place.parents):
            if directory.is_relative_to(root):
                found += _limit(directory / name)
    return found


def _limit(file: Path) -> list[int]:
    """In a container the path may be one that is seen outside only."""
    try:
        text = file.read_text().strip()
    except OSError:
        return []
    return [int(text)] if text.isdigit() else []
