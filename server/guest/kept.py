"""An interpreter that stays: a bash or a Python whose state lives on from one command to the next.

Its own stdin carries our orders, one line each. A command's stdin, stdout and stderr are FIFOs that nobody
else holds: those that a background process keeps open are replaced before the next command, so it cannot
speak into a later one's output. The end of a command is reported through a FIFO too, opened by path: no
descriptor of ours is inherited by anything.
All of it lives in a directory that only root may list or change.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import shutil
import signal
import termios
import time
from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import Any, Iterator, Mapping, NamedTuple

from .capture import Output
from .control import interrupt
from .ground import Ground
from .pipes import Pipes
from .processes import Child, Streams
from .streams import Reader
from .trees import kill_tree, now_ticks, signal_tree
from .usage import Meter, Usage, cpu_in
from .work import TIMED_OUT_CODE, Outcome, Work, decode_status

READY = "0"  # the token of the report that a fresh interpreter begins with
_START_SECONDS = 20.0
_REPORT_LIMIT = 2 << 20
_KILLED = 9


class NeverRead(Exception):
    """The interpreter was dead before it read its orders: the command has not run."""


class Died(Exception):
    """The interpreter ended: by `exit`, by a signal, or because it had to be killed."""

    def __init__(self, timed_out: bool = False) -> None:
        self.timed_out = timed_out


class Report(NamedTuple):
    """What an interpreter says when a command has ended."""

    status: int
    cwd: str
    details: Mapping[str, Any] = MappingProxyType({})


class Kept(ABC):
    """One interpreter. Not thread safe: `Shells` sees to it that one command runs at a time."""

    def __init__(self, ground: Ground, place: str) -> None:
        self._ground = ground
        self._home = ground.home
        self._place = place
        self._child: Child | None = None
        self._orders = -1
        self._reports = -1
        self._account = -1
        self._spent = 0.0
        self._usage = Usage(0.0, None)
        self._buffer = b""
        self._sequence = 0

    @abstractmethod
    def _argv(self) -> list[str]:
        """How the interpreter is started. The first thing it does is to report itself `READY`."""

    @abstractmethod
    def setting(self, env: dict[str, str], directory: str) -> str:
        """A command that sets variables for good and goes to a directory."""

    @contextlib.contextmanager
    def unnoticed(self) -> Iterator[None]:
        """What runs in the block leaves no trace in what the next command is told of the last one."""
        yield

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
                self.prepare()
                outcome = self._run(work, output)
                outcome.usage = self._usage
            except NeverRead:
                lost = True
                continue
            except Died as exc:
                outcome = self._bury(output, exc.timed_out)
            outcome.restarted |= lost
            return outcome
        return self._bury(output, timed_out=False)

    def prepare(self) -> None:
        """Start it, if it does not run. Raises Died."""
        if self._child is None:
            self._start()
            self._await_ready()

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.status is None

    @property
    def pid(self) -> int | None:
        child = self._child
        return None if child is None else child.pid

    def close(self) -> None:
        if self._child is not None:
            kill_tree(self._child.pid, self._child.mark, 0, spare_root=False)
            self._clear()
        shutil.rmtree(self._place, ignore_errors=True)

    def _token(self) -> str:
        self._sequence += 1
        return str(self._sequence)

    def _obey(self, token: str, orders: str, work: Work, output: Output) -> Report:
        """Run the prepared command: give the orders and wait for the report. Raises Died."""
        assert self._child is not None
        since = now_ticks()
        meter = Meter(self._child, since, kept=True, account=self._cpu)
        reader = self._reader(self._pipes.reading_ends(), output)
        try:
            work.control.begin(self._child, since, kept=True, meter=meter)
            report = self._order(token, orders, reader, time.monotonic() + work.timeout, meter)
            self._usage = meter.final()
            return report
        finally:
            work.control.finish()
            held = reader.finish()
            self._ground.drain.adopt(held)
            self._pipes.finish(held=bool(held))

    def _order(self, token: str, orders: str, reader: Reader, deadline: float, meter: Meter) -> Report:
        """Orders out, report in; when time is up, by force."""
        try:
            self._write(orders.encode())
            meter.begin()
            return self._await(token, reader, deadline, meter) or self._interrupt(token, reader, meter)
        except Died as exc:
            if not exc.timed_out and self._unread() >= len(orders.encode()):
                raise NeverRead from exc
            raise

    def _reader(self, pipes: dict[int, str], output: Output) -> Reader:
        assert self._child is not None
        reader = Reader(pipes, output)
        reader.watch(self._reports)
        reader.watch(self._child.exited)
        return reader

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

    def _await(self, token: str, reader: Reader, deadline: float, meter: Meter) -> Report | None:
        assert self._child is not None
        while True:
            ready = reader.wait(min(deadline, meter.next_look))
            if ready is None:
                if time.monotonic() >= deadline:
                    return None
                meter.look()
            elif self._reports in ready:
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

    def _interrupt(self, token: str, reader: Reader, meter: Meter) -> Report:
        """End the command and everything it started, and keep the interpreter if it can be kept."""
        assert self._child is not None
        meter.now()  # what is killed takes its account with it
        reports: list[Report] = []

        def reported(patience: float) -> bool:
            report = self._await(token, reader, time.monotonic() + patience, meter)
            reports.extend([report] if report else [])
            return bool(report)

        try:
            interrupt(self._child, meter.since, reported)
        except Died as exc:
            raise Died(timed_out=True) from exc
        if not reports:
            raise Died(timed_out=True)
        return Report(TIMED_OUT_CODE, reports[0].cwd, {**reports[0].details, "timed_out": True})

    def _bury(self, output: Output, timed_out: bool) -> Outcome:
        child = self._child
        assert child is not None
        Reader({}, output).watch_until(child.exited, time.monotonic() + 2)
        code, name = decode_status(child.status if child.status is not None else _KILLED)
        usage = Usage(max(0.0, child.cpu_seconds - self._spent), child.peak_memory or None)
        self._clear()
        code = TIMED_OUT_CODE if timed_out else code
        return Outcome(output, self._home, code, name, timed_out, restarted=True, usage=usage)

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
        reader = self._reader({}, Output(0))
        meter = Meter(self._child, 0, kept=True)
        if self._await(READY, reader, time.monotonic() + _START_SECONDS, meter) is None:
            signal_tree(self._child.pid, self._child.mark, 0, signal.SIGKILL)
            raise Died
        self._account = os.open(f"/proc/{self._child.pid}/stat", os.O_RDONLY | os.O_CLOEXEC)

    def _cpu(self) -> float:
        """The interpreter's account; the last one known if it is gone."""
        with contextlib.suppress(OSError):
            self._spent = cpu_in(os.pread(self._account, 1024, 0))
        return self._spent

    def _clear(self) -> None:
        assert self._child is not None
        self._child.close()
        os.close(self._orders)
        os.close(self._reports)
        if self._account >= 0:
            os.close(self._account)
        self._child, self._account, self._spent = None, -1, 0.0
        self._buffer = b""

    @property
    def _report_path(self) -> str:
        return os.path.join(self._place, "r")


def outcome_of(report: Report, output: Output) -> Outcome:
    details = dict(report.details)
    timed_out = bool(details.pop("timed_out", False))
    return Outcome(output, report.cwd, report.status, None, timed_out, False, details)
