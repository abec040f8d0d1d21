"""Can sessions be opened? The last answer is given again for a moment: strangers may ask without end."""

from __future__ import annotations

import time
from dataclasses import dataclass

from server.errors import StoreUnavailable, Unavailable
from server.keeper_client import KeeperClient
from server.remembered import Remembered
from server.store import Store

_REMEMBERED_SECONDS = 1.0


@dataclass(frozen=True)
class Ready:
    """`status` is ready, checking (not yet known), unavailable, or degraded: the wall has a gap, or disk
    limits are soft."""

    status: str
    checks: dict[str, str]
    wall: dict[str, str]
    storage: str | None = None  # what an operator should know of it


class Readiness:
    def __init__(self, store: Store, keeper: KeeperClient) -> None:
        self._store = store
        self._keeper = keeper
        self.look = Remembered(self._look, _REMEMBERED_SECONDS)

    def _look(self) -> Ready:
        checks = dict.fromkeys(("store", "keeper", "engine", "image", "sandbox"), "ok")
        checks["store"] = self._check_store()
        wall: dict[str, str] | None = None
        storage = None
        try:
            told = self._keeper.check()
        except Unavailable as exc:
            checks["keeper"] = exc.detail
        else:
            checks |= told["problems"]
            wall, storage = told["wall"], told.get("storage")
        return Ready(_status(checks, wall, storage), checks, wall or {}, storage)

    def _check_store(self) -> str:
        try:
            self._store.check_writable(time.time())
        except StoreUnavailable:
            return "the store cannot be written: is the disk full?"
        return "ok"


def _status(checks: dict[str, str], wall: dict[str, str] | None, storage: str | None) -> str:
    if any(value != "ok" for value in checks.values()):
        return "unavailable"
    if wall is None:
        return "checking"
    return "degraded" if wall or storage else "ready"
