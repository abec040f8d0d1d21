"""Sandboxes that are closed while nobody waits for it; a few at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from server.keeper.runtime import RuntimeFailed

_AT_ONCE = 8
_FINISH_SECONDS = 30.0

_log = logging.getLogger("sandbox.keeper")


class Removals:
    def __init__(self, close: Callable[[str], None]) -> None:
        self._close = close
        self._places = threading.BoundedSemaphore(_AT_ONCE)

    def soon(self, sandbox: str) -> None:
        """Without waiting for it, unless many are being closed already: opening must not outrun it."""
        if self._places.acquire(blocking=False):
            threading.Thread(target=self._remove, args=(sandbox,), daemon=True).start()
        else:
            self._close(sandbox)

    def finish(self) -> None:
        """Wait for all: a keeper that stops leaves nothing half done."""
        for _ in range(_AT_ONCE):
            self._places.acquire(timeout=_FINISH_SECONDS)

    def _remove(self, sandbox: str) -> None:
        """What fails here is the reconciler's."""
        try:
            self._close(sandbox)
        except RuntimeFailed as exc:
            _log.warning("could not remove a sandbox yet: %s", exc, extra={"fields": {"words": exc.words}})
        finally:
            self._places.release()
