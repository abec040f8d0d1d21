"""The keeper's parts, put together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from server.audit.ledger import Ledger
from server.config import Config
from server.day_usage import usage_of
from server.guest_client import GuestClient
from server.instance import Instance, Owner
from server.keeper import oci_choice
from server.keeper.datasets import Datasets
from server.keeper.doctor.examination import Doctor
from server.keeper.filler import Filler
from server.keeper.furnishing import Furnishing
from server.keeper.host import Host
from server.keeper.leaks import Leaks
from server.keeper.line import Line
from server.keeper.making import Making
from server.keeper.meters import Meters
from server.keeper.pool import Pool
from server.keeper.reaper import Reaper
from server.keeper.runtime.docker import DockerRuntime
from server.keeper.sampling import Sampler
from server.keeper.sandboxes import Sandboxes
from server.keeper.selfcheck import SelfCheck
from server.keeper.sleeping import Sleeping
from server.keeper.snapshotting import Snapshotting
from server.keeper.storage import Storage
from server.keeper.turns import Turns
from server.keeper.verbs import Verbs
from server.keeper.vitals import Vitals
from server.keeper.volumes.choice import choose
from server.keeper.waiting import Waiting
from server.quota_rows import QuotaRows
from server.remembered import Remembered
from server.sleep_rows import SleepRows
from server.store import Store
from server.upload_rows import UploadRows
from server.volume_rows import VolumeRows

_CHECK_SECONDS = 3.0  # anybody may ask /readyz, and every asking would reach the engine

_log = logging.getLogger("sandbox.keeper")


@dataclass(frozen=True)
class Parts:
    verbs: Verbs
    reaper: Reaper
    selfcheck: SelfCheck
    filler: Filler
    sampler: Sampler


def put_together(
    config: Config,
    instance: Instance,
    owner: Owner,
    store: Store,
    runtime: DockerRuntime,
    meters: Meters,
    tell: Callable[[str], None],
) -> Parts:
    """`tell` is told what is being done where that may take a while."""
    tell("preparing the storage of workspaces")
    choice = choose(config)
    if choice.concern is not None:
        _log.error("storage: %s", choice.concern)
    rows, quotas, sleepers = VolumeRows(store), QuotaRows(config, store), SleepRows(store)
    _forget_the_last_keeper(quotas, sleepers)
    line = Line(config.queue_max)
    host = Host(config, quotas, runtime, line.ring)
    host.describe()
    storage = Storage(config.sandboxes_dir, owner, choice.volumes)
    datasets = Datasets(config, UploadRows(store), time.time)
    furnishing = Furnishing(config, rows, quotas, storage, choice.volumes, datasets)
    guests = GuestClient(config.output_limit, config.executions_max)
    pool = Pool(config.pool_min, config.pool_max)
    meters.watch_pool(pool, config.images)
    meters.watch_storage(furnishing.room)
    making = Making(config, instance, runtime, storage, furnishing, guests, host.freed)
    making.claim_uids(runtime.seen())
    sandboxes = Sandboxes(
        config, store, runtime, storage, furnishing, guests, making, pool, host, meters, time.time
    )
    vitals = Vitals(instance, store, runtime, storage, guests, sandboxes, meters)
    turns = Turns()
    sleeping = Sleeping(
        config, store, sleepers, runtime, furnishing, sandboxes, vitals, turns, quotas.admit_waking, time.time
    )
    places = (rows, runtime, storage, furnishing)
    snapshotting = Snapshotting(*places, sandboxes, vitals, sleeping, turns, time.time)
    selfcheck = SelfCheck(config, runtime, sandboxes, guests, furnishing.is_soft)
    tell("trying OCI runtimes")
    chosen = oci_choice.choose(config, runtime, selfcheck)
    chores = (host.describe, line.ring, usage_of(config, store).write_down)
    leaks = Leaks(config, store, runtime, storage, sandboxes, furnishing, time.time)
    meters.watch_leaks(leaks.last)
    sampler = Sampler(store, runtime, furnishing, config.sample_interval, time.time)
    ledger = Ledger(config.audit_path, instance.audit_key)
    others = (vitals, sleeping, furnishing, rows, leaks, meters, ledger, time.time, chores)
    reaper = Reaper(config, store, runtime, storage, sandboxes, *others)
    waiting, doctor = Waiting(store, quotas, line, time.time), Doctor(config, runtime, selfcheck, chosen)
    domain = (config, sandboxes, vitals, snapshotting, sleeping, furnishing, waiting, datasets)
    problems = Remembered(lambda: runtime.check(config.images.values()), _CHECK_SECONDS)
    verbs = Verbs(*domain, selfcheck, leaks, sampler, meters, doctor, choice.concern, problems)
    return Parts(verbs, reaper, selfcheck, Filler(config, pool, host, runtime, sandboxes), sampler)


def _forget_the_last_keeper(quotas: QuotaRows, sleepers: SleepRows) -> None:
    """Whoever waited in line, or was being woken, when it died does so no more."""
    quotas.leave_line()
    sleepers.sleep_on()
