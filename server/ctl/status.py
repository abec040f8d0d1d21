"""`sandboxctl status`: whether sessions can be opened, asked of the keeper; with the engine's own words."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from server.config import Config
from server.ctl.words import Commands, command, tell
from server.errors import KeeperUnavailable
from server.keeper_client import KeeperClient
from server.readiness import status_of

_NOT_READY = 3


def add_to(commands: Commands) -> None:
    meaning = "say whether sessions can be opened, and if not, why; the exit code is 0 if so, 3 if not"
    command(commands, "status", meaning, _status)


def _status(config: Config, arguments: argparse.Namespace) -> None:
    told = _asked(config)
    tell(arguments, told, _as_text(told))
    if told["status"] not in ("ready", "degraded"):
        sys.exit(_NOT_READY)


def _asked(config: Config) -> dict[str, Any]:
    try:
        with KeeperClient(config.keeper_socket) as keeper:
            told = keeper.check()
    except KeeperUnavailable:
        stopped = "it does not answer: start the server, or run this as its user; its log says more"
        return {"status": "unavailable", "problems": {"keeper": stopped}, "words": {}}
    return {"status": status_of(told["problems"], told["wall"], told["storage"]), **told}


def _as_text(told: dict[str, Any]) -> str:
    lines = [told["status"]]
    if told.get("doing"):
        lines.append(f"  now: {told['doing']}")
    for name, problem in told["problems"].items():
        lines.append(f"  {name}: {problem}")
        if name in told.get("words", {}):
            lines.append(f"    the engine says: {told['words'][name]}")
    lines += [f"  wall: {name}: {difference}" for name, difference in (told.get("wall") or {}).items()]
    if told.get("storage"):
        lines.append(f"  storage: {told['storage']}")
    return "\n".join(lines)
