"""One uid for each sandbox, for as long as any file or process may have it.

The kernel counts processes and the like by uid, for the whole host. So each installation begins at another
one: two on a host do not meet before they have very many sandboxes.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable

from server.keeper.runtime import RuntimeFailed, Seen

_ALL = range(20000, 24096)  # the image knows these as `user`


class Uids:
    def __init__(self, instance: str) -> None:
        begin = int.from_bytes(hashlib.sha256(instance.encode()).digest()[:4], "big") % len(_ALL)
        self._in_order: tuple[int, ...] = (*_ALL[begin:], *_ALL[:begin])
        self._taken: dict[str, int] = {}
        self._lock = threading.Lock()

    def claim(self, survivors: Iterable[Seen]) -> None:
        """At start: those of sandboxes that outlived the last keeper."""
        with self._lock:
            self._taken |= {sandbox.id: sandbox.uid for sandbox in survivors}

    def take(self, sandbox: str) -> int:
        with self._lock:
            taken = set(self._taken.values())
            uid = next((uid for uid in self._in_order if uid not in taken), None)
            if uid is None:
                raise RuntimeFailed(f"All {len(taken)} places of this host are taken. Close sessions first.")
            self._taken[sandbox] = uid
            return uid

    def give_back(self, sandbox: str) -> None:
        with self._lock:
            self._taken.pop(sandbox, None)
