"""The FIFOs between the guest and a command in an interpreter that stays."""

from __future__ import annotations

import os
import select

from .stdin import Input
from .streams import Feeder
from .work import Work

_LARGE_COMMAND = 1 << 16


def write_file(path: str, data: bytes) -> None:
    """On the path of every command: half the cost of a file object."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
    finally:
        os.close(file)


class Pipes:
    """The FIFOs of one command, and the file with its text. Names are short: bash reads them byte by byte.

    Those for its output serve the next command too, unless somebody still holds them.
    """

    def __init__(self, place: str) -> None:
        self.command = os.path.join(place, "c")
        self.stdout = os.path.join(place, "o")
        self.stderr = os.path.join(place, "e")
        self.stdin = os.devnull
        self._fifo = os.path.join(place, "i")
        os.mkfifo(self.stdout, 0o622)
        os.mkfifo(self.stderr, 0o622)
        self._once = _remembers_writers(self.stdout)
        if self._once:
            self._renew()

    def prepare(self, work: Work) -> None:
        write_file(self.command, str(work.command).encode())
        self.stdin = os.devnull
        if work.stdin is None and not work.open_stdin:
            return
        self.stdin = self._fifo
        os.mkfifo(self.stdin, 0o644)
        if work.open_stdin:
            work.control.stdin = Input(os.open(self._fifo, os.O_RDWR | os.O_NONBLOCK))
        else:
            Feeder(work.stdin or b"", lambda: os.open(self._fifo, os.O_WRONLY))

    def reading_ends(self) -> dict[int, str]:
        flags = os.O_RDONLY | os.O_NONBLOCK
        return {os.open(self.stdout, flags): "stdout", os.open(self.stderr, flags): "stderr"}

    def finish(self, held: bool) -> None:
        if os.path.getsize(self.command) > _LARGE_COMMAND:
            os.truncate(self.command, 0)
        if self.stdin != os.devnull:
            # A feeder that still waits for a reader gets one, finds it gone, and ends.
            reader = os.open(self.stdin, os.O_RDONLY | os.O_NONBLOCK)
            os.unlink(self.stdin)
            os.close(reader)
        if held or self._once:
            self._renew()

    def _renew(self) -> None:
        for path in (self.stdout, self.stderr):
            os.unlink(path)
            os.mkfifo(path, 0o622)


def _remembers_writers(fifo: str) -> bool:
    """gVisor tells a new reader of a FIFO that its writers have gone, although they were an earlier reader's.

    Linux waits for the first one. There the next command's output would be taken to have ended at once.
    """
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    os.close(reader)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        return bool(poll.poll(0))
    finally:
        os.close(reader)
