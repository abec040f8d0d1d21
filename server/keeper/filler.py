"""Keeps the pool as full as demand wants it: one sandbox at a time, while nobody waits for the engine.

A warm sandbox whose image is no longer the one of that name, or whose guest does not answer, goes.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from server.config import Config
from server.keeper.host import Host
from server.keeper.pool import Pool, Warm
from server.keeper.runtime import Runtime, RuntimeFailed
from server.keeper.sandboxes import Sandboxes

_LOOK_SECONDS = 5.0
_CALM_SECONDS = 0.25
_LONGEST_SECONDS = 1.0  # in which sessions are opened all the time, and the pool becomes smaller
_PAUSE_SECONDS = 1.0  # before what failed is tried again, however many ask
_RESERVE = 0.1  # of the host's memory is left alone

_log = logging.getLogger("sandbox.pool")


class Filler:
    def __init__(
        self, config: Config, pool: Pool, host: Host, runtime: Runtime, sandboxes: Sandboxes
    ) -> None:
        self._config = config
        self._pool = pool
        self._host = host
        self._runtime = runtime
        self._sandboxes = sandboxes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        if self._config.pool_max:
            self._thread.start()

    def stop(self) -> None:
        """The next keeper starts with a pool of its own: nothing of this one is left behind."""
        self._over.set()
        for warm in self._pool.close():
            self._discard(warm)
        if self._thread.is_alive():
            self._thread.join(timeout=60)

    def _run(self) -> None:
        added = True
        while self._pool.await_change(0 if added else _LOOK_SECONDS):
            if not added:
                self._step_back()
            try:
                added = self._tend()
            except RuntimeFailed as exc:
                added = False
                self._over.wait(_PAUSE_SECONDS)
                _log.warning("could not fill the pool: %s", exc, extra={"fields": {"words": exc.words}})

    def _step_back(self) -> None:
        """Those who are being served come first: to start a sandbox is work for the whole machine.

        Only before the first of several: a demand that lasts is met by filling on, not by starting each
        sandbox while its session waits for it.
        """
        until = time.monotonic() + _LONGEST_SECONDS
        while (rest := self._pool.calm_in(_CALM_SECONDS)) and self._pool.waiting():
            if time.monotonic() > until or self._over.wait(rest):
                return

    def _tend(self) -> bool:
        """Whether one was added: there may be room for another at once."""
        added = False
        for image, reference in self._config.images.items():
            current = self._runtime.image_id(reference)
            self._remove_spoilt(image, current)
            while self._lacks(image) < 0 and (surplus := self._pool.take(image)) is not None:
                self._discard(surplus)
            if current is not None and self._lacks(image) > 0 and self._may_add():
                self._add(image, current)
                added = True
        return added

    def _lacks(self, image: str) -> int:
        """How many are missing; negative when there are too many: all, where none can be used."""
        if self._sandboxes.can_use_warm():
            return self._pool.lacks(image)
        return -sum(warm.image == image for warm in self._pool.waiting())

    def _remove_spoilt(self, image: str, current: str | None) -> None:
        for warm in self._pool.waiting():
            good = warm.made_of == current and self._sandboxes.answers(warm.sandbox)
            if warm.image == image and not good and self._pool.drop(warm):
                _log.info("discarded", extra={"fields": {"sandbox": warm.sandbox.id}})
                self._discard(warm)

    def _may_add(self) -> bool:
        if self._sandboxes.is_busy() or _memory_left() <= _RESERVE:
            return False
        return self._host.has_room_for_warm(len(self._pool.waiting()))

    def _add(self, image: str, made_of: str) -> None:
        warm = self._sandboxes.warm_up(image, made_of)
        if not self._pool.put(warm):
            self._discard(warm)

    def _discard(self, warm: Warm) -> None:
        try:
            self._sandboxes.discard_warm(warm)
        except RuntimeFailed as exc:  # the reconciler finds it
            _log.warning("could not remove a warm sandbox: %s", exc, extra={"fields": {"words": exc.words}})


def _memory_left() -> float:
    """The part of the host's memory that could still be used."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return sizes["MemAvailable"] / sizes["MemTotal"]
