"""What a container has of the host's files, as the engine wants to be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from server.keeper.runtime import Spec

_ONLINE = "/sys/devices/system/cpu/online"
_MACHINE = ("cpuinfo", "stat", "meminfo")


def mounts_of(spec: Spec, is_gvisor: bool) -> list[dict[str, Any]]:
    mounts = [_bind(spec.run_dir, "/run/sandbox"), _bind(spec.cpus_online, _ONLINE, ReadOnly=True)]
    if not is_gvisor:  # a kernel of its own shows a machine of its own
        mounts += [_bind(spec.machine / name, f"/proc/{name}", ReadOnly=True) for name in _MACHINE]
    if spec.workspace is None or spec.data is None:
        return [*mounts, {"Type": "volume", "Target": "/workspace"}]
    # What the keeper mounts there later appears inside; nothing that is done inside appears outside.
    return [
        *mounts,
        _bind(spec.workspace, "/workspace", propagation="rslave"),
        _bind(spec.data, "/data", propagation="rslave", ReadOnly=True),
    ]


def _bind(source: Path, target: str, propagation: str = "private", **options: bool) -> dict[str, Any]:
    # Newer engines would make what is mounted below read-only, too: ours is, and that needs private mounts.
    bind = {"Propagation": propagation, "ReadOnlyNonRecursive": propagation != "private"}
    return {"Type": "bind", "Source": str(source), "Target": target, "BindOptions": bind, **options}
