"""Large stdins on their way to a guest: on disk, under no name, until they are sent and no longer.

Memory is for parsing. A sandbox may have to be woken first, and one that has gone bad may take its input
slowly: so there is an end to what one tenant may have waiting in a worker.
"""

from __future__ import annotations

import tempfile
import weakref
from typing import BinaryIO

from server.errors import ServerBusy

_LARGE = 1 << 20
_MOST_WAITING = 512 << 20  # bytes of a tenant


class Spooled:
    """Bytes in a file that is gone when they are sent, or when nobody wants to send them any more."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self.file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it is sent, or forgotten
        self._forgotten = weakref.finalize(self, self.file.close)
        self.file.write(data)

    @property
    def is_gone(self) -> bool:
        return self.file.closed

    def release(self) -> None:
        self._forgotten()


Stdin = bytes | Spooled


class Spool:
    def __init__(self, most: int = _MOST_WAITING) -> None:
        self._most = most
        self._waiting: dict[str, weakref.WeakSet[Spooled]] = {}

    def hold(self, tenant: str, data: bytes) -> Stdin:
        """Until it can be sent: what is small as it is."""
        if len(data) <= _LARGE:
            return data
        if self.waiting(tenant) + len(data) > self._most:
            raise ServerBusy(
                "Too much stdin waits to be sent to sandboxes of this tenant. Try again shortly."
            )
        held = Spooled(data)
        self._waiting.setdefault(tenant, weakref.WeakSet()).add(held)
        return held

    def waiting(self, tenant: str) -> int:
        """Bytes of it that are not sent yet."""
        return sum(one.size for one in self._waiting.get(tenant, ()) if not one.is_gone)
