"""The person's own terminal: in raw mode for a while, restored in every case; its size and its changes."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import termios
import tty
from collections.abc import Iterator, Sequence
from typing import Protocol

KEYS, SHOWN = 0, 1  # stdin and stdout
_OTHER_SCREEN, _MAIN_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"
# What else a full-screen program has not put back when it is left: mouse, paste marks, keys, cursor, colours.
_AS_BEFORE = b"\x1b[?1000;1002;1003;1006l\x1b[?2004l\x1b[?1l\x1b>\x1b[?25h\x1b[0m"


class Readable(Protocol):
    def fileno(self) -> int: ...


class Screen:
    """Reads keys, shows bytes, tells the size."""

    def __init__(self, changes: int) -> None:
        self._changes = changes
        self._full = False  # a program has put a screen of its own before the usual one

    @property
    def size(self) -> tuple[int, int]:
        try:  # the terminal's own: COLUMNS and LINES do not follow a window
            columns, rows = os.get_terminal_size(SHOWN)
        except OSError:
            columns, rows = shutil.get_terminal_size()
        return max(1, min(columns, 1000)), max(1, min(rows, 1000))

    def wait(self, others: Sequence[Readable], seconds: float) -> tuple[bytes | None, bool, list[Readable]]:
        """Keys (none at the end of stdin, None for no news), whether the size changed, who can be read."""
        sources: list[int | Readable] = [KEYS, self._changes, *others]
        ready, _, _ = select.select(sources, (), (), seconds)
        keys = os.read(KEYS, 65536) if KEYS in ready else None
        resized = self._changes in ready and bool(os.read(self._changes, 1024))
        return keys, resized, [other for other in others if other in ready]

    def restore(self) -> None:
        os.write(SHOWN, (_MAIN_SCREEN if self._full else b"") + _AS_BEFORE)

    def show(self, data: bytes) -> None:
        entered, left = data.rfind(_OTHER_SCREEN), data.rfind(_MAIN_SCREEN)
        if entered != left:  # both are -1 most often
            self._full = entered > left
        view = memoryview(data)
        while view:
            view = view[os.write(SHOWN, view) :]


def is_terminal() -> bool:
    return os.isatty(KEYS) and os.isatty(SHOWN)


@contextlib.contextmanager
def raw() -> Iterator[Screen]:
    """The terminal in raw mode: every key is a byte for the sandbox, Ctrl-C too."""
    before = termios.tcgetattr(KEYS)
    changes, news = os.pipe()
    own = Screen(changes)
    os.set_blocking(news, False)
    old = signal.signal(signal.SIGWINCH, lambda *_: _tell(news))
    try:
        tty.setraw(KEYS)
        yield own
    finally:
        with contextlib.suppress(termios.error, OSError):  # the terminal itself has gone
            own.restore()
            termios.tcsetattr(KEYS, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, old)
        os.close(changes)
        os.close(news)


def _tell(news: int) -> None:
    with contextlib.suppress(BlockingIOError):  # news that nobody has read yet is news enough
        os.write(news, b"x")
