"""How a command is reached from outside the thread that runs it: signals, stdin, size, end."""

from __future__ import annotations

import signal
import threading
import time
from typing import Callable

from .artifacts import now
from .processes import Child
from .stdin import Input
from .trees import interrupt_tree, kill_tree, signal_tree
from .usage import Meter

# To end what runs in an interpreter: ask as Ctrl-C does; then end what the command started and ask again,
# twice. The last resort ends the interpreter too.
_PATIENCE = (0.25, 0.4, 0.4)
_LAST_WORD = 0.2  # for an interpreter whose command was ended under it: asked now, it would forget to report


class Cancelled(Exception):
    """The command was cancelled before it began."""


class NotReachable(Exception):
    """The command has not begun, or is over."""


class Control:
    """Made for each execution. Its runner says when the command has begun, and that it is over."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._since = 0
        self._kept = False
        self._queue: threading.Event | None = None
        self._ending = threading.Lock()
        self._over = False
        self._noticed: threading.Event | None = None  # made when somebody waits for the end
        self.settled: threading.Event | None = None  # set when it runs, waits for its shell, or has ended
        self.begun = False
        self.cancelled = False
        self.out_of_room = False  # it was ended because the disk is full
        self.moment = now()  # when it began, for what it changes
        self.over_at: int | None = None  # by the clock that files are marked with; nothing of it is later
        self.meter: Meter | None = None
        self.stdin: Input | None = None

    def queue(self, turn: threading.Event) -> None:
        """It waits for its shell; `turn` is set when it need not wait any more."""
        with self._lock:
            self._queue = turn
            if self.cancelled:
                turn.set()
        self.settle()

    def settle(self) -> None:
        if self.settled is not None:
            self.settled.set()

    def begin(self, child: Child, since: int, kept: bool, meter: Meter) -> None:
        with self._lock:
            if self.cancelled:
                raise Cancelled
            self._over = False
            self._child, self._since, self._kept = child, since, kept
            self.meter = meter
            self.begun = True
            if kept:  # it may have waited for its shell; a process of its own runs already
                self.moment = now()
        self.settle()

    def finish(self) -> None:
        """It is over. Whoever is just ending it is waited for: what comes next must not be hit."""
        with self._lock:
            self._over = True
            self.over_at = time.time_ns()
            if self._noticed is not None:
                self._noticed.set()
        with self._ending, self._lock:
            self._child = None
        if self.stdin is not None:
            self.stdin.stop()

    def signal(self, number: int) -> None:
        child = self._running()
        if self._kept and number == signal.SIGINT:
            interrupt_tree(child.pid, child.mark, self._since)
        else:  # meant for the command, not for an interpreter it runs in
            signal_tree(child.pid, child.mark, self._since, number, spare_root=self._kept)

    def cancel(self) -> None:
        """End the command and all it started; one that waits for its shell gives up its place."""
        with self._ending:
            with self._lock:
                self.cancelled = self.cancelled or not self._over
                if self._queue is not None:
                    self._queue.set()
            self._end()

    def stop(self) -> None:
        """The same for what runs; what waits for its shell keeps its place."""
        with self._ending:
            self._end()

    def _end(self) -> None:
        with self._lock:
            child, noticed = self._child, threading.Event()
            self._noticed = noticed
            if child is None or self._over:
                return
        if self.meter is not None:
            self.meter.now()  # what is killed takes its account with it
        if self._kept:
            interrupt(child, self._since, noticed.wait)
        else:
            kill_tree(child.pid, child.mark, self._since, spare_root=False)

    def _running(self) -> Child:
        child = self._child
        if child is None:
            raise NotReachable
        return child


def interrupt(child: Child, since: int, ended: Callable[[float], bool]) -> bool:
    """End a command and all it started; its interpreter survives if `ended` becomes true soon enough."""
    for patience in _PATIENCE:
        interrupt_tree(child.pid, child.mark, since)
        over = ended(patience)
        kill_tree(child.pid, child.mark, since, spare_root=True)
        if over or ended(_LAST_WORD):
            return True
    signal_tree(child.pid, child.mark, since, signal.SIGKILL)
    return False
