"""What a container uses, read from its control groups, of either version. No engine is asked.

Where the groups are is guessed as the engine's two drivers name them, and read off the container's first
process where that fails. Of a group that is gone nothing can be told.
"""

from __future__ import annotations

from pathlib import Path

from server.keeper.runtime import Usage

_ROOT = Path("/sys/fs/cgroup")
_PLACES = ("docker/{id}", "system.slice/docker-{id}.scope")
_CONTROLLERS = ("cpuacct", "memory", "pids")

Groups = dict[str, Path]  # by controller; version 2 has one group for all


def find(container: str, first_process: int, root: Path = _ROOT) -> Groups | None:
    for place in _PLACES:
        groups = _groups(root, dict.fromkeys(_CONTROLLERS, place.format(id=container)))
        if groups is not None:
            return groups
    return _groups(root, _places_of(first_process))


def read(groups: Groups) -> Usage | None:
    try:
        return _read_two(groups["memory"]) if _is_two(groups["memory"]) else _read_one(groups)
    except (OSError, ValueError, KeyError):
        return None


def _groups(root: Path, places: dict[str, str]) -> Groups | None:
    unified = (root / "cgroup.controllers").exists()
    groups = {name: (root if unified else root / name) / place for name, place in places.items()}
    return groups if all(path.is_dir() for path in groups.values()) else None


def _places_of(pid: int) -> dict[str, str]:
    try:
        return places_in(Path(f"/proc/{pid}/cgroup").read_text())
    except OSError:
        return dict.fromkeys(_CONTROLLERS, "gone")


def places_in(told: str) -> dict[str, str]:
    """As the kernel tells them, a line each: `4:cpu,cpuacct:/a/b`, or `0::/a/b` of version 2."""
    found: dict[str, str] = {}
    for line in told.splitlines():
        _, names, place = line.split(":", 2)
        for name in names.split(",") if names else _CONTROLLERS:
            if name in _CONTROLLERS and (names or name not in found):
                found[name] = place.lstrip("/")
    return found


def _is_two(group: Path) -> bool:
    return (group / "memory.current").exists()


def _read_two(group: Path) -> Usage:
    return Usage(
        cpu_seconds=_table(group / "cpu.stat")["usage_usec"] / 1e6,
        memory=_in_use(_number(group / "memory.current"), _table(group / "memory.stat")["inactive_file"]),
        memory_peak=_optional(group / "memory.peak"),  # since Linux 5.19
        processes=_optional(group / "pids.current"),
    )


def _read_one(groups: Groups) -> Usage:
    memory = groups["memory"]
    dropped = _table(memory / "memory.stat")["total_inactive_file"]
    return Usage(
        cpu_seconds=_number(groups["cpuacct"] / "cpuacct.usage") / 1e9,
        memory=_in_use(_number(memory / "memory.usage_in_bytes"), dropped),
        memory_peak=_optional(memory / "memory.max_usage_in_bytes"),
        processes=_optional(groups["pids"] / "pids.current"),
    )


def _in_use(total: int, droppable: int) -> int:
    return max(0, total - droppable)


def _number(path: Path) -> int:
    with open(path, "rb") as file:
        return int(file.read())


def _optional(path: Path) -> int | None:
    try:
        return _number(path)
    except (OSError, ValueError):
        return None


def _table(path: Path) -> dict[str, int]:
    with open(path, "rb") as file:
        return {name.decode(): int(value) for name, value in map(bytes.split, file.read().splitlines())}
