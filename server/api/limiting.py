"""All that limits requests, put together: who asks, how often, what is in use, and what was used today."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from flask import Flask

from server.api.addresses import Addresses
from server.api.rates import Rates, rates_of
from server.concurrency import Concurrency
from server.config import Config
from server.day_usage import DayUsage, usage_of
from server.detached import Detached
from server.quota_rows import QuotaRows
from server.standing import DiskUsed, Standing
from server.store import Store
from server.tally import Tally


@dataclass(frozen=True)
class Limiting:
    addresses: Addresses
    rates: Rates
    quotas: QuotaRows
    usage: DayUsage
    detached: Detached
    tally: Tally
    concurrency: Concurrency
    standing: Standing


def limiting(app: Flask, config: Config, store: Store, disk_used: DiskUsed, rates: Path | None) -> Limiting:
    """`rates` is the file in which requests are counted, if it is another than that of all workers."""
    addresses, quotas = Addresses(config.proxies), QuotaRows(config, store)
    usage, detached = usage_of(config, store), Detached(store)
    tally = Tally(config.store_path.with_name("tally"), config.web_workers)
    concurrency = Concurrency(quotas, usage, detached, tally, time.time)
    return Limiting(
        addresses,
        rates_of(app, config, addresses.client, rates),
        quotas,
        usage,
        detached,
        tally,
        concurrency,
        Standing(quotas, concurrency, disk_used),
    )
