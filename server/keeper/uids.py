"""One uid for each sandbox, for as long as any file or process may have it."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from server.keeper.runtime import RuntimeFailed, Seen

FIRST_UID = 20000
_LAST_UID = 24095  # the image knows these as `user`


class Uids:
    def __init__(self) -> None:
        self._taken: dict[str, int] = {}
        self._lock = threading.Lock()

    def claim(self, survivors: Iterable[Seen]) -> None:
        """At start: those of sandboxes that outlived the last keeper."""
        with self._lock:
            self._taken |= {sandbox.id: sandbox.uid for sandbox in survivors}

    def take(self, sandbox: str) -> int:
        with self._lock:
            taken = set(self._taken.values())
            uid = next((uid for uid in range(FIRST_UID, _LAST_UID + 1) if uid not in taken), None)
            if uid is None:
                raise RuntimeFailed(f"All {len(taken)} places of this host are taken. Close sessions first.")
            self._taken[sandbox] = uid
            return uid

    def give_back(self, sandbox: str) -> None:
        with self._lock:
            self._taken.pop(sandbox, None)
