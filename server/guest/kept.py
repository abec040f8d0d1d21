"""An interpreter that stays: a bash or a Python whose state lives on from one command to the next.

Its own stdin carries our orders, one line each. A command's stdin, stdout and stderr are FIFOs that nobody
else holds: those that a background process keeps open are replaced before the next command, so it cannot
speak into a later one's output. The end of a command is reported through a FIFO too, opened by path: no
descriptor of ours is inherited by anything.
All of it lives in a directory that only root may list or change.
"""

from __future__ import annotations

import array
import fcntl
import os
import shutil
import signal
import termios
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from .capture import Output
from .ground import Ground
from .processes import Child, Streams, kill_tree, now_ticks, signal_tree
from .streams import Feeder, Reader
from .work import TIMED_OUT_CODE, Outcome, Work, decode_status

READY = "0"  # the token of the report that a fresh interpreter begins with
_START_SECONDS = 20.0
_REPORT_LIMIT = 2 << 20
_LARGE_COMMAND = 1 << 16
_KILLED = 9
# After a timeout: ask as Ctrl-C does; then end what the command started and ask again, twice. The last
# resort ends the interpreter too.
_PATIENCE = (0.25, 0.5, 0.5)


class NeverRead(Exception):
    """The interpreter was dead before it read its orders: the command has not run."""


class Died(Exception):
    """The interpreter ended: by `exit`, by a signal, or because it had to be killed."""

    def __init__(self, timed_out: bool = False) -> None:
        self.timed_out = timed_out


@dataclass(frozen=True)
class Report:
    """What an interpreter says when a command has ended."""

    status: int
    cwd: str
    details: dict[str, Any] = field(default_factory=dict)


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

    def prepare(self, work: Work) -> None:
        write_file(self.command, str(work.command).encode())
        self.stdin = os.devnull
        if work.stdin is not None:
            self.stdin = self._fifo
            os.mkfifo(self.stdin, 0o644)
            Feeder(work.stdin, lambda: os.open(self._fifo, os.O_WRONLY))

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
        if held:
            for path in (self.stdout, self.stderr):
                os.unlink(path)
                os.mkfifo(path, 0o622)


class Kept(ABC):
    """One interpreter. Not thread safe: `Shells` sees to it that one command runs at a time."""

    def __init__(self, ground: Ground, place: str) -> None:
        self._ground = ground
        self._home = ground.home
        self._place = place
        self._child: Child | None = None
        self._orders = -1
        self._reports = -1
        self._buffer = b""
        self._sequence = 0

    @abstractmethod
    def _argv(self) -> list[str]:
        """How the interpreter is started. The first thing it does is to report itself `READY`."""

    @abstractmethod
    def _run(self, work: Work, output: Output) -> Outcome:
        """Run one command in the living interpreter, by way of `_obey`."""

    @abstractmethod
    def _parse(self, token: str, raw: bytes) -> Report | None:
        """The report that ends the command `token`; None for anything else."""

    def run(self, work: Work, output: Output) -> Outcome:
        """Run a command; in a fresh interpreter if the old one ended between two commands."""
        lost = self._child is not None and self._child.status is not None
        for _ in range(2):
            if lost:
                self._clear()
            try:
                if self._child is None:
                    self._start()
                    self._await_ready()
                outcome = self._run(work, output)
            except NeverRead:
                lost = True
                continue
            except Died as exc:
                outcome = self._bury(output, exc.timed_out)
            outcome.restarted |= lost
            return outcome
        return self._bury(output, timed_out=False)

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.status is None

    def close(self) -> None:
        if self._child is not None:
            kill_tree(self._child.pid, self._child.mark, 0, spare_root=False)
            self._clear()
        shutil.rmtree(self._place, ignore_errors=True)

    def _token(self) -> str:
        self._sequence += 1
        return str(self._sequence)

    def _obey(self, token: str, orders: str, pipes: Pipes | None, output: Output, timeout: float) -> Report:
        """Give the orders and wait for the report, in the end by force. Raises Died."""
        assert self._child is not None
        reader = Reader(pipes.reading_ends() if pipes else {}, output)
        reader.watch(self._reports)
        reader.watch(self._child.exited)
        since = now_ticks()
        try:
            self._write(orders.encode())
            report = self._await(token, reader, time.monotonic() + timeout)
            if report is None:
                report = self._interrupt(token, reader, since)
            return report
        except Died as exc:
            if not exc.timed_out and self._unread() >= len(orders.encode()):
                raise NeverRead from exc
            raise
        finally:
            held = reader.finish()
            self._ground.drain.adopt(held)
            if pipes:
                pipes.finish(held=bool(held))

    def _write(self, orders: bytes) -> None:
        """Never blocks: what an interpreter is told fits into a pipe, unless it has stopped reading."""
        try:
            os.write(self._orders, orders)
        except BrokenPipeError as exc:
            raise NeverRead from exc
        except BlockingIOError as exc:
            assert self._child is not None
            signal_tree(self._child.pid, self._child.mark, 0, signal.SIGKILL)
            raise Died from exc

    def _unread(self) -> int:
        size = array.array("i", [0])
        fcntl.ioctl(self._orders, termios.FIONREAD, size)
        return size[0]

    def _await(self, token: str, reader: Reader, deadline: float) -> Report | None:
        assert self._child is not None
        while True:
            ready = reader.wait(deadline)
            if ready is None:
                return None
            if self._reports in ready:
                report = self._read_report(token)
                if report is not None:
                    return report
            elif self._child.exited in ready:
                raise Died

    def _read_report(self, token: str) -> Report | None:
        """Anything in the sandbox may write here: what is not the awaited report is dropped."""
        *lines, rest = (self._buffer + os.read(self._reports, 1 << 16)).split(b"\0")
        self._buffer = rest if len(rest) <= _REPORT_LIMIT else b""
        for line in lines:
            report = self._parse(token, line)
            if report is not None:
                return report
        return None

    def _interrupt(self, token: str, reader: Reader, since: int) -> Report:
        """End the command and everything it started, and keep the interpreter if it can be kept."""
        child = self._child
        assert child is not None
        for patience in _PATIENCE:
            signal_tree(child.pid, child.mark, since, signal.SIGCONT, signal.SIGINT)
            report = self._await_interrupted(token, reader, patience)
            kill_tree(child.pid, child.mark, since, spare_root=True)
            if report is not None:
                return Report(TIMED_OUT_CODE, report.cwd, {**report.details, "timed_out": True})
        signal_tree(child.pid, child.mark, since, signal.SIGKILL)
        raise Died(timed_out=True)

    def _await_interrupted(self, token: str, reader: Reader, patience: float) -> Report | None:
        try:
            return self._await(token, reader, time.monotonic() + patience)
        except Died as exc:
            raise Died(timed_out=True) from exc

    def _bury(self, output: Output, timed_out: bool) -> Outcome:
        child = self._child
        assert child is not None
        Reader({}, output).watch_until(child.exited, time.monotonic() + 2)
        code, name = decode_status(child.status if child.status is not None else _KILLED)
        self._clear()
        code = TIMED_OUT_CODE if timed_out else code
        return Outcome(output, self._home, code, name, timed_out, restarted=True)

    def _start(self) -> None:
        """A fresh interpreter in a fresh directory."""
        shutil.rmtree(self._place, ignore_errors=True)
        os.mkdir(self._place, 0o711)
        os.mkfifo(self._report_path, 0o622)
        self._pipes = Pipes(self._place)
        self._reports = os.open(self._report_path, os.O_RDWR | os.O_NONBLOCK)
        null = os.open(os.devnull, os.O_RDWR)
        orders_read, self._orders = os.pipe()
        os.set_blocking(self._orders, False)
        try:
            streams = Streams(orders_read, null, null)
            self._child = self._ground.processes.spawn(self._argv(), self._ground.env, self._home, streams)
        except BaseException:
            os.close(self._orders)
            os.close(self._reports)
            raise
        finally:
            os.close(orders_read)
            os.close(null)

    def _await_ready(self) -> None:
        """A command's time starts when its interpreter is up: one that is still starting takes no SIGINT."""
        assert self._child is not None
        reader = Reader({}, Output(0))
        reader.watch(self._reports)
        reader.watch(self._child.exited)
        if self._await(READY, reader, time.monotonic() + _START_SECONDS) is None:
            signal_tree(self._child.pid, self._child.mark, 0, signal.SIGKILL)
            raise Died

    def _clear(self) -> None:
        assert self._child is not None
        self._child.close()
        os.close(self._orders)
        os.close(self._reports)
        self._child = None
        self._buffer = b""

    @property
    def _report_path(self) -> str:
        return os.path.join(self._place, "r")


def outcome_of(report: Report, output: Output) -> Outcome:
    details = dict(report.details)
    timed_out = bool(details.pop("timed_out", False))
    return Outcome(output, report.cwd, report.status, None, timed_out, False, details)
