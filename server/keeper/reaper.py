"""What happens by the clock: expiring leases, reconciling, forgetting old tombstones. APScheduler runs it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone

from apscheduler.schedulers.background import BackgroundScheduler

from server.audit.ledger import Ledger, LedgerFailed
from server.audit.outbox import carry_over
from server.audit.retention import Kept, prune
from server.audit.witness import Witness
from server.config import Config
from server.keeper.furnishing import Furnishing
from server.keeper.leaks import Leaks
from server.keeper.meters import Meters
from server.keeper.reconcile import reconcile
from server.keeper.runtime import Runtime, RuntimeFailed
from server.keeper.sandboxes import Sandboxes
from server.keeper.sleeping import Sleeping
from server.keeper.spent import Spent
from server.keeper.storage import Storage
from server.keeper.vitals import Vitals
from server.key_rows import KeyRows
from server.leak_rows import LeakRows
from server.sleep_rows import SleepRows
from server.stale_rows import drop_stale
from server.store import Session, Store
from server.tenant_rows import TenantRows
from server.upload_rows import UploadRows
from server.uploads import sweep as sweep_uploads
from server.volume_rows import VolumeRows

_EXPIRE_SECONDS = 5
_DOZE_SECONDS = 5
_RECONCILE_SECONDS = 60
_ASKING_SECONDS = 15.0  # far beyond what lies between reserving a place and asking us to open it
_OPENING_SECONDS = 300.0  # far beyond what opening may take
_TOMBSTONE_SECONDS = 7 * 86400.0
_OLD_KEY_SECONDS = 30 * 86400.0

_log = logging.getLogger("sandbox.reaper")


class Reaper:
    def __init__(
        self,
        config: Config,
        store: Store,
        runtime: Runtime,
        storage: Storage,
        sandboxes: Sandboxes,
        vitals: Vitals,
        sleeping: Sleeping,
        furnishing: Furnishing,
        rows: VolumeRows,
        leaks: Leaks,
        meters: Meters,
        ledger: Ledger,
        clock: Callable[[], float],
        chores: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._chores = chores
        self._config = config
        self._store = store
        self._uploads = UploadRows(store)
        self._runtime = runtime
        self._storage = storage
        self._sandboxes = sandboxes
        self._vitals = vitals
        self._spent = Spent(config, store, vitals, clock)
        self._sleeping = sleeping
        self._furnishing = furnishing
        self._rows = rows
        self._leaks = leaks
        self._leak_rows = LeakRows(store)
        self._left: set[str] = set()
        self._meters = meters
        self._ledger = ledger
        self._witness = Witness(config.state, ledger)
        self._clock = clock
        self._scheduler = BackgroundScheduler(
            timezone="UTC", job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
        )
        self._sweeping = self._scheduler.add_job(self.sweep, "interval", seconds=_RECONCILE_SECONDS)

    def start(self) -> None:
        self._scheduler.add_job(self.expire, "interval", seconds=_EXPIRE_SECONDS)
        self._scheduler.add_job(self._sleeping.doze, "interval", seconds=_DOZE_SECONDS)
        self._scheduler.add_job(self.audit, "interval", seconds=_EXPIRE_SECONDS)
        self._scheduler.start()

    def stop(self) -> None:
        self._scheduler.shutdown(wait=False)
        with suppress(LedgerFailed):
            self._witness.keep()

    def expire(self) -> None:
        """A failure leaves the rest for the sweep: the session is over for its callers all the same."""
        self._let_rest()
        for session in self._spent.end():  # before their leases are: what they came to is written down
            self._remove(session)
        for session in self._store.due(self._clock()):
            if self._store.end_if_due(session.id, self._clock()):
                _log.info("expired", extra={"fields": {"session": session.id}})
                self._remove(session)
        self._remove_rows()
        self._remove_left()
        if self._runtime.faltered():  # it may have been restarted: nobody shall wait for the next minute
            self._sweeping.modify(next_run_time=datetime.now(timezone.utc))

    def _remove_rows(self) -> None:
        """Places that were reserved by a web worker which died before it asked us to open a sandbox, and what
        belongs to sessions that ended meanwhile."""
        under_way = self._sandboxes.under_way()
        before = self._clock() - _ASKING_SECONDS
        since = self._leak_rows.opening()
        if left := [one for one in since.keys() - under_way if since[one] < before]:
            self._leak_rows.drop_openings(left)
        self._leak_rows.drop_survivors()

    def _remove_left(self) -> None:
        """What had no owner at the last look either: whoever ended its session died before it asked us to
        remove it. The engine is not asked for this; the sweep does that."""
        unowned = self._unowned()
        for name in unowned & self._left:
            self._attempt(self._sandboxes.close, name)
        self._left = unowned

    def _remove(self, session: Session) -> None:
        """One that was cold leaves only its volume."""
        if session.sandbox is not None:
            self._attempt(self._sandboxes.close, session.sandbox)
        elif session.volume is not None:
            self._attempt(self._furnishing.drop, session.volume)

    def _attempt(self, remove: Callable[[str], object], what: str) -> None:
        try:
            remove(what)
        except RuntimeFailed as exc:
            _log.warning("could not remove a sandbox: %s", exc, extra={"fields": {"words": exc.words}})

    def _let_rest(self) -> None:
        """What keeps a session beyond its lease may have ended without anybody having been there."""
        now = self._clock()
        for session in SleepRows(self._store).kept_busy(now):
            rested_at = self._vitals.rested_at(session)
            if rested_at is not None:
                self._store.rest(session.id, min(now, rested_at), session.busy_until)

    def audit(self) -> None:
        """What ended by itself is recorded, and what was recorded brought to disk and witnessed."""
        try:
            carry_over(self._store, self._ledger)
            self._witness.keep()
        except LedgerFailed:
            return  # said in the log, and tried again

    def _prune_audit(self, now: float) -> None:
        try:
            removed = prune(self._ledger, Kept(self._config.audit_age, self._config.audit_size), now)
        except LedgerFailed:
            return
        if removed:
            _log.info("pruned the audit", extra={"fields": {"records": removed}})

    def sweep(self, openings_before: float | None = None) -> None:
        now = self._clock()
        drop_stale(self._store, openings_before or now - _OPENING_SECONDS, now - _TOMBSTONE_SECONDS)
        self._rows.drop_stale(now, now - self._config.snapshot_age)
        self._prune_audit(now)
        KeyRows(self._store).drop_stale(now - _OLD_KEY_SECONDS)
        TenantRows(self._store).clear_deleted(now)
        try:
            sweep_uploads(self._config, self._uploads, now)
            for chore in self._chores:
                chore()
            places = (self._config, self._store, self._runtime, self._storage)
            found = reconcile(*places, self._sandboxes, self._clock)
            self._sleeping.settle()
            self._meters.swept(found + self._furnishing.sweep(now))
            self._leaks.count()
        except RuntimeFailed as exc:
            _log.warning("could not reconcile: %s", exc, extra={"fields": {"words": exc.words}})

    def _unowned(self) -> set[str]:
        directories, in_hand = set(self._storage.list()), self._sandboxes.in_hand()
        return directories - in_hand - {session.sandbox for session in self._store.running()}
