"""A bar on the terminal for whoever waits for a transfer: how much, how fast, how long still."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from ..outgoing import Progress
from .output import one_line, size

STEP = 0.1  # seconds between two drawings
WIDTH = 24


class Bar:
    """Drawn over and over on one line. `clock` gives seconds."""

    def __init__(self, label: str, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._label = one_line(label)
        self._stream = stream
        self._clock = clock
        self._began = clock()
        self._drawn = -STEP
        self._last: tuple[int, int | None] = (0, None)

    def __call__(self, done: int, total: int | None) -> None:
        self._last = (done, total)
        elapsed = self._clock() - self._began
        if elapsed - self._drawn >= STEP:
            self._drawn = elapsed
            self._draw()

    def end(self) -> None:
        """Leave the last state on the screen."""
        self._draw()
        self._stream.write("\n")
        self._stream.flush()

    def _draw(self) -> None:
        line = self.line(*self._last, self._clock() - self._began)
        room = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r\033[K{line[:room]}")
        self._stream.flush()

    def line(self, done: int, total: int | None, elapsed: float) -> str:
        rate = done / elapsed if elapsed > 0 else 0.0
        pace = f"{size(rate)}/s"
        if total is None:
            return f"{self._label}  {size(done)}  {pace}"
        total = max(done, total)
        share = done / total if total else 1.0
        drawn = ("#" * round(share * WIDTH)).ljust(WIDTH, "-")
        left = f"{(total - done) / rate:.0f}s left" if rate and done < total else ""
        return f"{self._label}  [{drawn}] {share:4.0%}  {size(done)}/{size(total)}  {pace}  {left}".rstrip()


@contextlib.contextmanager
def shown(label: str, quiet: bool) -> Iterator[Progress | None]:
    """A bar for the time of a transfer; none where nobody looks."""
    if quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    bar = Bar(label, sys.stderr)
    try:
        yield bar
    finally:
        bar.end()
