"""Can sessions be opened? The last answer is given again for a moment: strangers may ask without end."""

from __future__ import annotations

import time
from dataclasses import dataclass

from server.errors import StoreUnavailable, Unavailable
from server.keeper_client import KeeperClient
from server.store import Store

_REMEMBERED_SECONDS = 1.0


@dataclass(frozen=True)
class Ready:
    """`status` is ready, degraded (the wall has a gap), checking (not yet known) or unavailable."""

    status: str
    checks: dict[str, str]
    wall: dict[str, str]


class Readiness:
    def __init__(self, store: Store, keeper: KeeperClient) -> None:
        self._store = store
        self._keeper = keeper
        self._until = 0.0
        self._last = Ready("checking", {}, {})

    def look(self) -> Ready:
        if time.monotonic() >= self._until:
            self._last = self._look()
            self._until = time.monotonic() + _REMEMBERED_SECONDS
        return self._last

    def _look(self) -> Ready:
        checks = {"store": self._check_store(), "keeper": "ok", "engine": "ok", "image": "ok"}
        wall: dict[str, str] | None = None
        try:
            told = self._keeper.check()
        except Unavailable as exc:
            checks["keeper"] = exc.detail
        else:
            checks |= told["problems"]
            wall = told["wall"]
        return Ready(_status(checks, wall), checks, wall or {})

    def _check_store(self) -> str:
        try:
            self._store.check_writable(time.time())
        except StoreUnavailable:
            return "the store cannot be written: is the disk full?"
        return "ok"


def _status(checks: dict[str, str], wall: dict[str, str] | None) -> str:
    if any(value != "ok" for value in checks.values()):
        return "unavailable"
    if wall is None:
        return "checking"
    return "degraded" if wall else "ready"
