"""What GET /metrics says: what the workers counted, what there is now, what the keeper tells of itself."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator

from prometheus_client import Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily

import server
from server.census import Census
from server.counts import Counts
from server.errors import SandboxError, StoreUnavailable
from server.guest import protocol
from server.keeper_client import KeeperClient

_REMEMBERED_SECONDS = 1.0


class Exposition:
    """The last answer is given again for a moment, however many ask."""

    def __init__(self, counts: Counts, census: Census, keeper: KeeperClient) -> None:
        self._counts = counts
        self._census = census
        self._keeper = keeper
        self._until = 0.0
        self._last = b""

    def text(self) -> bytes:
        if time.monotonic() >= self._until:
            self._last = self._written()
            self._until = time.monotonic() + _REMEMBERED_SECONDS
        return self._last

    def _written(self) -> bytes:
        """No name is both the keeper's and ours: each tells its families whole."""
        try:
            keeper = self._keeper.metrics()
        except SandboxError:
            keeper = ""
        return generate_latest(_Ours(self._counts, self._census, bool(keeper))) + keeper.encode()


class _Ours:
    def __init__(self, counts: Counts, census: Census, keeper_up: bool) -> None:
        self._counts = counts
        self._census = census
        self._keeper_up = keeper_up

    def collect(self) -> Iterator[Metric]:
        yield from self._counts.collect()
        store_up = 1.0
        try:
            yield from list(self._census.collect())
        except StoreUnavailable:
            store_up = 0.0
        yield GaugeMetricFamily("sandbox_store_up", "Whether the store could be read.", store_up)
        yield GaugeMetricFamily("sandbox_keeper_up", "Whether the keeper answered.", float(self._keeper_up))
        yield _build()


def _build() -> Metric:
    facts = {
        "version": server.__version__,
        "guest_protocol": str(protocol.VERSION),
        "python": platform.python_version(),
    }
    family = GaugeMetricFamily("sandbox_build_info", "What is running; always 1.", labels=list(facts))
    family.add_metric(list(facts.values()), 1)
    return family
