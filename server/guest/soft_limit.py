"""A limit on the workspace where the host cannot keep one: it is measured, and writers are stopped.

It is soft: what is written between two looks is there, and what its owner has hidden from itself is not seen.
Between looks a glance at what the filesystem has left tells when the next one may not wait.
A workspace that is over and does not grow is left alone, so that things can be deleted.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Callable

from .as_user import as_user
from .control import Control
from .ground import Ground
from .room import Measure, measure
from .trees import everything, kill_all_but, stop_all_but

_PAUSE = 2.0
_LINGERING_PAUSE = 10.0
_SHARE = 20  # a look is followed by so many times its own length without one
_URGENT_SHARE = 4  # and by so many if much was written
_GLANCE = 0.1
_MUCH = 4  # the part of the limit that is


class SoftLimit:
    def __init__(self, limit: int, ground: Ground, interpreters: Callable[[], set[int]]) -> None:
        """`interpreters` are those processes that stay whatever happens."""
        self._limit = limit
        self._ground = ground
        self._interpreters = interpreters
        self._running: set[Control] = set()
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._busy = threading.Event()
        self._last = Measure(0, True, 0.0)
        self._looked_at = 0.0
        self._free = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def begin(self, control: Control) -> None:
        with self._lock:
            self._running.add(control)
            self._wake()

    def end(self, control: Control) -> bool:
        """Whether it was stopped for want of room, or has left none."""
        self._look_if_due()
        with self._lock:
            self._running.discard(control)
        return control.out_of_room or self._is_over()

    def refuses(self) -> bool:
        """Whether nothing more may be written. What is then written is watched as well."""
        self._look_if_due()
        with self._lock:
            self._wake()
        return self._is_over()

    def left(self) -> int:
        """How many bytes there is still room for, as of the last look."""
        return max(0, self._limit - self._last.used)

    def _wake(self) -> None:
        if not self._busy.is_set():
            self._free = self._free_now()
        self._busy.set()

    def _is_over(self) -> bool:
        return self._last.used > self._limit or not self._last.complete

    def _look_if_due(self) -> None:
        """What was over is looked at every time: that there is room again must be noticed."""
        if self._is_over() or time.monotonic() - self._looked_at >= _SHARE * self._last.seconds:
            self._look()

    def _watch(self) -> None:
        while self._busy.wait(threading.TIMEOUT_MAX):
            self._rest()
            if self._is_idle():
                continue
            self._look()

    def _rest(self) -> None:
        """Until the next look is due, or much was written: by others too, for all that can be seen."""
        began = now = time.monotonic()
        while now < began + max(_PAUSE if self._running else _LINGERING_PAUSE, _SHARE * self._last.seconds):
            time.sleep(_GLANCE)
            now, free = time.monotonic(), self._free_now()
            self._free = max(self._free, free)
            hasty = now >= self._looked_at + _URGENT_SHARE * self._last.seconds
            if hasty and self._free - free > self._limit // _MUCH:
                return

    def _free_now(self) -> int:
        try:
            about = os.statvfs(self._ground.home)
        except OSError:
            return 0  # then it is looked at closely
        return about.f_bavail * about.f_frsize

    def _is_idle(self) -> bool:
        """Nothing runs, and nothing that commands have left behind."""
        if self._running or everything() - self._interpreters():
            return False
        with self._lock:
            if not self._running:
                self._busy.clear()
        return True

    def _look(self) -> None:
        identity = self._ground.processes.identity
        assert identity is not None, "bind comes first"
        with self._looking:
            self._free = self._free_now()
            with as_user(identity.uid, identity.gid):
                now = measure(self._ground.home)
            grows = now.used > max(self._limit, self._last.used) or not now.complete
            self._last, self._looked_at = now, time.monotonic()
        if grows:
            self._stop()

    def _stop(self) -> None:
        """As a timeout ends a command: interpreters survive.

        Held first and ended after: a shell whose program is killed under it would go on with its next one.
        """
        with self._lock:
            running = [control for control in self._running if control.begun]
        for control in running:
            control.out_of_room = True
        stop_all_but(self._interpreters())
        for control in running:
            control.stop()
        kill_all_but(self._interpreters())
