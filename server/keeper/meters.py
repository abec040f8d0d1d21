"""What the keeper counts: one process, whose numbers begin at nothing when it starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import ParamSpec, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from server.keeper.pool import Pool
from server.keeper.runtime import Refused, RuntimeFailed

_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ENGINE_SECONDS = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)

Given = ParamSpec("Given")
Made = TypeVar("Made")
Room = Callable[[], tuple[int, int] | None]


class Meters:
    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # twice as many lines, of no use to anybody
        self._registry = CollectorRegistry()
        count = partial(Counter, registry=self._registry)
        spread = partial(Histogram, registry=self._registry)
        about = "Giving a session its sandbox: warm from the pool, or cold."
        self._created = spread("sandbox_create_duration_seconds", about, ["start"], buckets=_SECONDS)
        self._failures = count("sandbox_create_failures", "Sandboxes that could not be given to a session.")
        about = "What the reconciler removed that nobody owned, or found dead."
        self._orphans = count("sandbox_orphans_swept", about)
        about = "Calls that the engine refused or left unanswered."
        self._engine_errors = count("sandbox_engine_errors", about, ["kind"])
        about = "Calls to the engine."
        self._engine_calls = spread("sandbox_engine_call_duration_seconds", about, buckets=_ENGINE_SECONDS)
        about = "Guests found to have begun anew behind their session's back."
        self._guest_restarts = count("sandbox_guest_restarts", about)
        ProcessCollector(namespace="sandbox_keeper", registry=self._registry)
        for start in ("warm", "cold"):
            self._created.labels(start)
        for kind in ("refused", "silent"):
            self._engine_errors.labels(kind)

    def timed(
        self, start: str, make: Callable[Given, Made], *args: Given.args, **kwargs: Given.kwargs
    ) -> Made:
        """What `make` gives; its time counts if that is something."""
        began = time.monotonic()
        try:
            made = make(*args, **kwargs)
        except Refused:
            raise
        except RuntimeFailed:
            self._failures.inc()
            raise
        if made is not None:
            self._created.labels(start).observe(time.monotonic() - began)
        return made

    def swept(self, found: int) -> None:
        self._orphans.inc(found)

    def watch_leaks(self, last: Callable[[], Mapping[str, int]]) -> None:
        """`last` tells how many the last count found of each kind."""
        about = "What nobody owns and is still there, by kind. Must be 0."
        leaks = Gauge("sandbox_leaks", about, ["kind"], registry=self._registry)
        for kind in last():
            leaks.labels(kind).set_function(partial(_count_of, kind, last))

    def engine_called(self, seconds: float, failure: str | None) -> None:
        self._engine_calls.observe(seconds)
        if failure is not None:
            self._engine_errors.labels(failure).inc()

    def guest_restarted(self) -> None:
        self._guest_restarts.inc()

    def watch_pool(self, pool: Pool, images: Iterable[str]) -> None:
        warm = Gauge("sandbox_pool_warm", "Warm sandboxes that wait.", ["image"], registry=self._registry)
        wanted = Gauge("sandbox_pool_wanted", "Warm sandboxes wanted.", ["image"], registry=self._registry)
        for image in images:
            warm.labels(image).set_function(partial(_warm, pool, image))
            wanted.labels(image).set_function(partial(_wanted, pool, image))

    def watch_storage(self, room: Room) -> None:
        """Asked for when somebody reads; not told where the storage is not ours to say."""
        size = Gauge(
            "sandbox_storage_size_bytes", "Bytes that all volumes may hold.", registry=self._registry
        )
        used = Gauge("sandbox_storage_used_bytes", "Bytes that volumes hold.", registry=self._registry)
        size.set_function(lambda: float((room() or (0, 0))[0]))
        used.set_function(lambda: _used(room()))

    def text(self) -> str:
        return generate_latest(self._registry).decode()


def _warm(pool: Pool, image: str) -> int:
    return sum(warm.image == image for warm in pool.waiting())


def _wanted(pool: Pool, image: str) -> int:
    return _warm(pool, image) + pool.lacks(image)


def _count_of(kind: str, last: Callable[[], Mapping[str, int]]) -> int:
    return last()[kind]


def _used(room: tuple[int, int] | None) -> float:
    return 0.0 if room is None else float(room[0] - room[1])
