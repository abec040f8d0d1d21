"""What is there and belongs to nobody, counted and not touched. At rest there is nothing.

What is being opened, closed or kept warm is in somebody's hand. What a look finds is looked for again a
moment later, so that what was changing hands in between is not taken for a leak.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from server.config import Config
from server.keeper.furnishing import Furnishing
from server.keeper.inhabitants import inhabitants
from server.keeper.runtime import Runtime
from server.keeper.sandboxes import Sandboxes
from server.keeper.storage import Storage
from server.keeper.strays import mounts_by_place, sandbox_at, unused_devices
from server.leak_rows import LeakRows
from server.store import Store
from server.upload_rows import UploadRows

KINDS = (
    "containers",
    "directories",
    "mounts",
    "sockets",
    "processes",
    "rows",
    "volumes",
    "uploads",
    "devices",
)
_AGAIN_SECONDS = 1.0
_NAMED = 20  # of a kind, in the log and in an answer

Found = dict[str, set[str]]

_log = logging.getLogger("sandbox.leaks")


class Leaks:
    def __init__(
        self,
        config: Config,
        store: Store,
        runtime: Runtime,
        storage: Storage,
        sandboxes: Sandboxes,
        furnishing: Furnishing,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._store = store
        self._rows = LeakRows(store)
        self._uploads = UploadRows(store)
        self._runtime = runtime
        self._storage = storage
        self._sandboxes = sandboxes
        self._furnishing = furnishing
        self._clock = clock
        self._last: Found = {kind: set() for kind in KINDS}

    def count(self) -> dict[str, list[str]]:
        """What was found twice, by kind. A process that multiplies is found each time it is looked for."""
        found = self._look()
        if any(found.values()):
            time.sleep(_AGAIN_SECONDS)
            again = self._look()
            found = {kind: found[kind] & again[kind] for kind in KINDS}
        changed, self._last = found != self._last, found
        if changed and any(found.values()):
            named = {kind: sorted(names)[:_NAMED] for kind, names in found.items() if names}
            _log.warning("things that nobody owns", extra={"fields": {"found": named}})
        return {kind: sorted(names) for kind, names in found.items()}

    def last(self) -> dict[str, int]:
        """How many the last count found, by kind."""
        return {kind: len(names) for kind, names in self._last.items()}

    def _look(self) -> Found:
        """What comes first when something is made is looked at last: it cannot be missing then."""
        processes = inhabitants(self._config.sandboxes_dir)
        places = mounts_by_place(self._config)
        directories = set(self._storage.list())
        seen = {sandbox.id: sandbox.cause for sandbox in self._runtime.seen()}
        volumes = self._furnishing.orphans()
        files = set(os.listdir(self._config.uploads_dir))
        under_way, in_hand = self._sandboxes.under_way(), self._sandboxes.in_hand()
        held = {self._storage.volume_of(sandbox) for sandbox in in_hand}
        running = {one.sandbox: one.id for one in self._store.running() if one.sandbox is not None}
        owned = running.keys() | in_hand
        dead = {running[name] for name in running.keys() - in_hand if seen.get(name, "lost") is not None}
        opening = self._rows.opening().keys() - under_way
        return {
            "containers": seen.keys() - owned,
            "directories": directories - owned,
            "mounts": self._unowned_mounts(places, owned),
            "sockets": {name for name in directories - owned if self._has_socket(name)},
            "processes": processes.keys() - owned,
            "rows": {f"session/{session}" for session in dead | opening} | self._rows.stale(self._clock()),
            "volumes": volumes - held,
            "uploads": files - self._uploads.all().keys(),
            "devices": unused_devices(self._config),
        }

    def _unowned_mounts(self, places: Counter[Path], owned: set[str]) -> set[str]:
        """Those of nobody's sandbox, and what lies below another mount at the same place."""
        root = self._config.sandboxes_dir
        return {
            str(place.relative_to(root))
            for place, times in places.items()
            if times > 1 or sandbox_at(self._config, place) not in owned
        }

    def _has_socket(self, sandbox: str) -> bool:
        path = self._storage.socket_of(sandbox)
        with contextlib.suppress(OSError):
            return stat.S_ISSOCK(os.lstat(path).st_mode)
        return False
