"""What every live sandbox uses, read at a fixed pace and kept for an hour, in memory and within bounds."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

from server.errors import StoreUnavailable
from server.keeper.furnishing import Furnishing
from server.keeper.runtime import Runtime, RuntimeFailed, Usage
from server.keeper.series import Series
from server.store import Session, Store

_KEPT_SECONDS = 3600.0
_MOST_SAMPLES = 240

_log = logging.getLogger("sandbox.sampling")


class Sampler:
    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        furnishing: Furnishing,
        interval: float,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._furnishing = furnishing
        self._interval = interval
        self._clock = clock
        self._series: dict[str, Series] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def tell(self, session_id: str, seconds: float) -> dict[str, Any]:
        """Now, and what was kept of the last so many seconds."""
        session = self._store.session(session_id)
        looked = self._look(session) if session is not None else ("", None, None)
        now = self._clock()
        with self._lock:
            series = self._series.get(session_id) or Series(_MOST_SAMPLES)
            rows = list(series.since(now - min(seconds, _KEPT_SECONDS)))
            return {"interval": self._interval, "now": series.row(now, *looked), "samples": rows}

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                self.sample()
            except StoreUnavailable:
                _log.warning("could not sample: the store cannot be read")

    def sample(self) -> None:
        running = self._store.running()
        for session in running:
            looked = self._look(session)
            with self._lock:
                series = self._series.setdefault(session.id, Series(_MOST_SAMPLES))
                series.add(self._clock(), *looked)
        self._forget({session.id for session in running})

    def _look(self, session: Session) -> tuple[str, Usage | None, int | None]:
        sandbox = session.sandbox or ""
        usage, disk = None, None
        with contextlib.suppress(RuntimeFailed):
            usage = self._runtime.usage(sandbox) if sandbox else None
            disk = self._furnishing.used(session.volume) if session.volume is not None else None
        return sandbox, usage, disk

    def _forget(self, running: set[str]) -> None:
        """What has ended, and what has slept for longer than samples are kept."""
        with self._lock:
            resting = {one: series.newest for one, series in self._series.items() if one not in running}
        for session_id, newest in resting.items():
            session = self._store.session(session_id)
            if session is None or session.state == "ended" or newest < self._clock() - _KEPT_SECONDS:
                with self._lock:
                    self._series.pop(session_id, None)
