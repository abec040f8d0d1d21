"""What a container has of the host's files, as the engine wants to be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from server.keeper.runtime import Spec

_ONLINE = "/sys/devices/system/cpu/online"
_MACHINE = ("cpuinfo", "stat", "meminfo")
_NAMES = ("hostname", "hosts")


def mounts_of(spec: Spec, is_gvisor: bool) -> list[dict[str, Any]]:
    mounts = [_bind(spec.run_dir, "/run/sandbox"), _bind(spec.cpus_online, _ONLINE, read_only=True)]
    mounts += [_bind(spec.machine / name, f"/etc/{name}", read_only=True) for name in _NAMES]
    if not is_gvisor:  # a kernel of its own shows a machine of its own
        mounts += [_bind(spec.machine / name, f"/proc/{name}", read_only=True) for name in _MACHINE]
    if spec.workspace is None or spec.data is None:
        return [*mounts, {"Type": "volume", "Target": "/workspace"}]
    # What the keeper mounts there later appears inside; nothing that is done inside appears outside.
    return [
        *mounts,
        _bind(spec.workspace, "/workspace", propagation="rslave"),
        _bind(spec.data, "/data", propagation="rslave", read_only=True),
    ]


def _bind(source: Path, target: str, propagation: str = "private", read_only: bool = False) -> dict[str, Any]:
    options: dict[str, Any] = {"Propagation": propagation}
    if read_only and propagation != "private":
        # Engines from 25 on make what is mounted below read-only, too: ours is, and that would need private
        # mounts. They refuse the word where the bind itself is writable.
        options["ReadOnlyNonRecursive"] = True
    return {
        "Type": "bind",
        "Source": str(source),
        "Target": target,
        "ReadOnly": read_only,
        "BindOptions": options,
    }
