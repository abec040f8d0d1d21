"""Can sessions be opened? The last answer is given again for a moment: strangers may ask without end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from server.errors import StoreUnavailable, Unavailable
from server.keeper_client import KeeperClient
from server.remembered import Remembered
from server.store import Store

_REMEMBERED_SECONDS = 1.0
_WAITED_FOR_SECONDS = 0.1  # while somebody may wait for it to become ready
_STARTING = "starting"


@dataclass(frozen=True)
class Ready:
    """`status` is ready, checking (not yet known), unavailable, or degraded: the wall has a gap, or disk
    limits are soft."""

    status: str
    checks: dict[str, str]
    wall: dict[str, str]
    storage: str | None = None  # what an operator should know of it
    doing: str | None = None  # what is still to be done before it is known
    words: dict[str, str] = field(default_factory=dict)  # the engine's own, by check

    @property
    def is_ready(self) -> bool:
        """A sandbox was started and ran a command, and nothing is known to be wrong since."""
        return self.status in ("ready", "degraded")

    def as_json(self, for_operator: bool) -> dict[str, Any]:
        """The engine's words may name paths of the host."""
        told = vars(self).copy()
        if not for_operator:
            del told["words"]
        return told


class Readiness:
    def __init__(self, store: Store, keeper: KeeperClient) -> None:
        self._store = store
        self._keeper = keeper
        self.look = Remembered(self._look, _remembered_seconds)

    def _look(self) -> Ready:
        checks = dict.fromkeys(("store", "keeper", "engine", "image", "sandbox"), "ok")
        checks["store"] = self._check_store()
        try:
            told = self._keeper.check()
        except Unavailable as exc:
            checks["keeper"] = exc.detail
            return Ready("unavailable", checks, {})
        checks |= told["problems"]
        wall, storage = told["wall"], told.get("storage")
        doing = told.get("doing") or (_STARTING if wall is None else None)
        return Ready(
            status_of(checks, wall, storage), checks, wall or {}, storage, doing, told.get("words", {})
        )

    def _check_store(self) -> str:
        try:
            self._store.check_writable(time.time())
        except StoreUnavailable:
            return "the store cannot be written: is the disk full?"
        return "ok"


def _remembered_seconds(ready: Ready) -> float:
    return _REMEMBERED_SECONDS if ready.is_ready else _WAITED_FOR_SECONDS


def status_of(checks: dict[str, str], wall: dict[str, str] | None, storage: str | None) -> str:
    if any(value != "ok" for value in checks.values()):
        return "unavailable"
    if wall is None:
        return "checking"
    return "degraded" if wall or storage else "ready"
