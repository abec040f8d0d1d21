"""A stdin that stays open: bytes come when the caller sends some, and wait until the command reads."""

from __future__ import annotations

import os
import select
import threading

from . import terminal

_MOST_WAITING = 1 << 20
_END_OF_INPUT = b"\x04"  # what a terminal's line discipline takes for it


class StdinFull(Exception):
    """The command does not read, and as much waits for it as may. Nothing of this was taken."""


class StdinClosed(Exception):
    """The command's stdin is closed, or cannot be written to."""


class NoTerminal(Exception):
    """The command runs on no terminal."""


class Input:
    """Writes to `fd`, a pipe or the other end of a terminal, which it owns.

    Most input is written at once. Only when the command is slow does a thread wait for it.
    """

    def __init__(self, fd: int, is_terminal: bool = False) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._is_terminal = is_terminal
        self._waiting = bytearray()
        self._last = b"\n"
        self._closing = False
        self._writer: threading.Thread | None = None
        self._wake = (-1, -1)
        self._lock = threading.Lock()

    def send(self, data: bytes, close: bool) -> None:
        with self._lock:
            if self._closing or self._fd < 0:
                raise StdinClosed
            if len(self._waiting) + len(data) > _MOST_WAITING:
                raise StdinFull
            self._waiting += data
            self._last = data[-1:] or self._last
            if close and self._is_terminal:
                # In the middle of a line the first one only hands the line over.
                self._waiting += _END_OF_INPUT if self._last in (b"\n", b"\r") else 2 * _END_OF_INPUT
            elif close:
                self._closing = True
            if self._writer is None and not self._write():
                self._wake = os.pipe()
                self._writer = threading.Thread(target=self._keep_writing, daemon=True)
                self._writer.start()

    def resize(self, cols: int, rows: int) -> None:
        with self._lock:
            if not self._is_terminal or self._fd < 0:
                raise NoTerminal
            terminal.resize(self._fd, cols, rows)

    def stop(self) -> None:
        """The command is over: whatever waits is dropped."""
        with self._lock:
            self._give_up()
            if self._writer is None:
                self._shut()
            else:
                os.write(self._wake[1], b"x")

    def _write(self) -> bool:
        """Whether nothing is left to do."""
        try:
            while self._waiting:
                del self._waiting[: os.write(self._fd, self._waiting)]
        except BlockingIOError:
            return False
        except OSError:  # the command reads no more
            self._give_up()
        if self._closing and not self._is_terminal:  # to close a terminal is to hang up on what runs there
            self._shut()
        return True

    def _give_up(self) -> None:
        self._waiting.clear()
        self._closing = True

    def _keep_writing(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        poll.register(self._wake[0], select.POLLIN)
        while True:
            told = dict(poll.poll())
            with self._lock:
                if told.get(self._fd, select.POLLOUT) & select.POLLOUT == 0:
                    self._give_up()  # nobody reads at the other end, nor will
                if self._write():
                    self._writer = None
                    for fd in self._wake:
                        os.close(fd)
                    return

    def _shut(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
