"""What an engine tells of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class EngineFacts:
    """`clock` is the engine's time when it was asked; `runtimes` are names with what is behind them."""

    version: str
    system: str
    cgroups: str
    security: tuple[str, ...]
    live_restore: bool
    storage_driver: str
    root: str
    default_runtime: str
    runtimes: Mapping[str, str]
    runc: str
    clock: float | None


def facts_of(info: Mapping[str, Any]) -> EngineFacts:
    """From the engine's answer, of whatever version: what is missing in it is empty."""
    runtimes = info.get("Runtimes") or {}
    return EngineFacts(
        version=str(info.get("ServerVersion") or ""),
        system=str(info.get("OperatingSystem") or ""),
        cgroups=str(info.get("CgroupVersion") or "1"),
        security=tuple(info.get("SecurityOptions") or ()),
        live_restore=bool(info.get("LiveRestoreEnabled")),
        storage_driver=str(info.get("Driver") or ""),
        root=str(info.get("DockerRootDir") or ""),
        default_runtime=str(info.get("DefaultRuntime") or ""),
        runtimes={
            name: str(about.get("path") or about.get("runtimeType") or "") for name, about in runtimes.items()
        },
        runc=str((info.get("RuncCommit") or {}).get("ID") or ""),
        clock=_seconds(str(info.get("SystemTime") or "")),
    )


def _seconds(text: str) -> float | None:
    """Of RFC 3339 text with more digits than Python takes."""
    try:
        return datetime.fromisoformat(text[:19] + "+00:00").timestamp() if text.endswith("Z") else None
    except ValueError:
        return None
