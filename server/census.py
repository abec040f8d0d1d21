"""How many there are right now, over the whole installation, and how many sessions ever ended of what."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from server.errors import CAUSES
from server.store import Store
from server.tally import Tally

_STATES = ("opening", "running", "paused", "cold")
# Two values of an index: tombstones, of which there may be many, are not walked over.
_LIVE = """SELECT CASE WHEN state = 'opening' THEN 'opening' WHEN phase = 'paused' THEN 'paused'
                  WHEN phase IN ('cold', 'waking') THEN 'cold' ELSE 'running' END AS told, count(*)
           FROM sessions WHERE state IN ('opening', 'running') GROUP BY told"""


class Census:
    def __init__(self, store: Store, tally: Tally, clock: Callable[[], float]) -> None:
        self._store = store
        self._tally = tally
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """Raises StoreUnavailable."""
        states = dict.fromkeys(_STATES, 0) | self._counts(_LIVE)
        yield _gauges("sandbox_sessions", "Live sessions, by state.", "state", states)
        causes = dict.fromkeys(CAUSES, 0) | self._counts("SELECT cause, count FROM ended_counts")
        ended = CounterMetricFamily(
            "sandbox_sessions_ended", "Sessions that ended, by cause.", labels=["cause"]
        )
        for cause, count in causes.items():
            ended.add_metric([cause], count)
        yield ended
        tenants = [row[0] for row in self._store.quickly("SELECT id FROM tenants")]
        running = self._detached() + sum(self._tally.count("executions", one) for one in tenants)
        yield GaugeMetricFamily(
            "sandbox_executions_running", "Commands that run or wait for their shell.", running
        )
        streams = sum(self._tally.count("streams", one) for one in tenants)
        yield GaugeMetricFamily(
            "sandbox_streams_open", "Open event streams, terminals and transfers.", streams
        )

    def _counts(self, sql: str) -> dict[str, int]:
        return {str(row[0]): int(row[1]) for row in self._store.quickly(sql)}

    def _detached(self) -> int:
        """Those that nobody waits for; one that ended unseen counts until somebody looks."""
        sql = "SELECT count(*) FROM detached WHERE until > ?"
        return int(self._store.quickly(sql, (self._clock(),)).fetchone()[0])


def _gauges(name: str, about: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(name, about, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family
