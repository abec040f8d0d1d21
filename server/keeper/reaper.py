"""What happens by the clock: expiring leases, reconciling, forgetting old tombstones. APScheduler runs it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from apscheduler.schedulers.background import BackgroundScheduler

from server.keeper.reconcile import reconcile
from server.keeper.runtime import Runtime, RuntimeFailed
from server.keeper.sandboxes import Sandboxes
from server.keeper.storage import Storage
from server.store import Store

_EXPIRE_SECONDS = 5
_RECONCILE_SECONDS = 60
_OPENING_SECONDS = 300.0  # far beyond what opening may take
_TOMBSTONE_SECONDS = 7 * 86400.0

_log = logging.getLogger("sandbox.reaper")


class Reaper:
    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        storage: Storage,
        sandboxes: Sandboxes,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._storage = storage
        self._sandboxes = sandboxes
        self._clock = clock
        self._scheduler = BackgroundScheduler(
            timezone="UTC", job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
        )

    def start(self) -> None:
        self._scheduler.add_job(self.expire, "interval", seconds=_EXPIRE_SECONDS)
        self._scheduler.add_job(self.sweep, "interval", seconds=_RECONCILE_SECONDS)
        self._scheduler.start()

    def stop(self) -> None:
        self._scheduler.shutdown(wait=False)

    def expire(self) -> None:
        """A failure leaves the rest for the sweep: the session is over for its callers all the same."""
        self._let_rest()
        for session in self._store.due(self._clock()):
            if self._store.end_if_due(session.id, self._clock()) and session.sandbox is not None:
                _log.info("expired", extra={"fields": {"session": session.id}})
                try:
                    self._sandboxes.close(session.sandbox)
                except RuntimeFailed as exc:
                    _log.warning(
                        "could not remove an expired sandbox: %s", exc, extra={"fields": {"words": exc.words}}
                    )

    def _let_rest(self) -> None:
        """What keeps a session beyond its lease may have ended without anybody having been there."""
        now = self._clock()
        for session in self._store.kept_busy(now):
            rested_at = self._sandboxes.rested_at(session)
            if rested_at is not None:
                self._store.rest(session.id, min(now, rested_at), session.busy_until)

    def sweep(self, openings_before: float | None = None) -> None:
        now = self._clock()
        self._store.drop_stale(openings_before or now - _OPENING_SECONDS, now - _TOMBSTONE_SECONDS)
        try:
            reconcile(self._store, self._runtime, self._storage, self._sandboxes)
        except RuntimeFailed as exc:
            _log.warning("could not reconcile: %s", exc, extra={"fields": {"words": exc.words}})
