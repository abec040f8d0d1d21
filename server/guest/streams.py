"""Pipes between the guest and a command: feeding its stdin, reading its output, draining what lingers."""

from __future__ import annotations

import os
import select
import selectors
import threading
import time
from collections import deque
from typing import Callable

from .capture import Output
from .protocol import Body

_READ_SIZE = 1 << 16
_LONGEST_POLL = 86400.0  # the kernel counts milliseconds in 31 bits
LINGER = 0.05  # seconds that output may still arrive after the command itself has ended
_MOST_LINGERING = 128


class Reader:
    """Reads a command's output pipes into an `Output`, beside the descriptors that tell its end."""

    def __init__(self, pipes: dict[int, str], output: Output) -> None:
        self._names = dict(pipes)
        self._output = output
        self._poll = select.poll()
        for fd in self._names:
            self._poll.register(fd, select.POLLIN)

    def watch(self, fd: int) -> None:
        self._poll.register(fd, select.POLLIN)

    def watch_until(self, fd: int, deadline: float) -> None:
        self.watch(fd)
        self.wait(deadline)

    def wait(self, deadline: float) -> list[int] | None:
        """Read what arrives until watched descriptors are ready, or time is up (None)."""
        while True:
            events = self._events(deadline)
            if events is None:
                return None
            others = [fd for fd in events if fd not in self._names]
            for fd in events:
                if fd in self._names:
                    self._read(fd)
            if others:
                return others

    def finish(self) -> list[int]:
        """Read the rest, a moment longer if somebody still holds a pipe; returns the pipes still held."""
        deadline = time.monotonic() + LINGER
        while self._names:
            events = self._events(deadline)
            if events is None:
                break
            for fd in events:
                if fd in self._names:
                    self._read(fd)
                else:
                    self._poll.unregister(fd)
        return list(self._names)

    def _events(self, deadline: float) -> list[int] | None:
        """None when time is up, also while a flood keeps coming."""
        while (left := deadline - time.monotonic()) > 0:
            ready = self._poll.poll(min(left, _LONGEST_POLL) * 1000)
            if ready:
                return [fd for fd, _ in ready]
        return None

    def _read(self, fd: int) -> None:
        try:
            chunk = os.read(fd, _READ_SIZE)
        except BlockingIOError:
            return
        except OSError:  # a terminal that nobody holds any more
            chunk = b""
        if chunk:
            self._output.add(self._names[fd], chunk)
            return
        self._poll.unregister(fd)
        del self._names[fd]
        os.close(fd)


class Feeder:
    """Writes a command's stdin from a thread, so that a command that reads slowly or never holds nobody.

    `open_pipe` may block until the command opens the other end; `stop` must make it return.
    """

    def __init__(self, data: Body, open_pipe: Callable[[], int]) -> None:
        self._thread = threading.Thread(target=self._feed, args=(data, open_pipe), daemon=True)
        self._thread.start()

    def _feed(self, data: Body, open_pipe: Callable[[], int]) -> None:
        try:
            fd = open_pipe()
        except OSError:
            return
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view[:_READ_SIZE]) :]
        except BrokenPipeError:
            pass  # the command ended, or wants no more
        finally:
            os.close(fd)


class Drain:
    """Keeps reading the pipes that background processes inherited, and forgets what they say.

    Without a reader they would block, or die, on their next line. Past the cap the oldest lose theirs.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._order: deque[int] = deque()
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        threading.Thread(target=self._run, daemon=True).start()

    def adopt(self, fds: list[int]) -> None:
        if not fds:
            return
        with self._lock:
            self._order.extend(fds)
        os.write(self._wake_write, b"x")

    def _run(self) -> None:
        registered: dict[int, bool] = {}
        while True:
            for key, _ in self._selector.select():
                if key.fd == self._wake_read:
                    self._take_new(registered)
                elif key.fd in registered and not _discard(key.fd):
                    self._drop(key.fd, registered)

    def _take_new(self, registered: dict[int, bool]) -> None:
        os.read(self._wake_read, 4096)
        with self._lock:
            wanted = list(self._order)
        for fd in wanted:
            if fd not in registered:
                registered[fd] = True
                self._selector.register(fd, selectors.EVENT_READ)
        for fd in wanted[: max(0, len(wanted) - _MOST_LINGERING)]:
            self._drop(fd, registered)

    def _drop(self, fd: int, registered: dict[int, bool]) -> None:
        self._selector.unregister(fd)
        del registered[fd]
        with self._lock:
            self._order.remove(fd)
        os.close(fd)


def _discard(fd: int) -> bool:
    """False at the end of the pipe."""
    try:
        return bool(os.read(fd, _READ_SIZE))
    except BlockingIOError:
        return True
