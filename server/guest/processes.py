"""Processes of the sandboxed user: starting them as that user, with the mark of `trees`, and reaping them."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import threading
from typing import Callable, Mapping, NamedTuple, Sequence

from . import terminal
from .trees import signal_all

_MARK_BASE = 1 << 40  # microseconds; far beyond what a real-time limit is ever set to
_MAY_BE_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


class CannotStart(Exception):
    """The program could not be started; `errno` is the operating system's reason."""

    def __init__(self, errno: int) -> None:
        super().__init__(os.strerror(errno))
        self.errno = errno


class NoSuchDirectory(Exception):
    """The working directory does not exist or may not be entered."""


class Identity(NamedTuple):
    """Whom commands run as. `processes` is the user's limit, below the container's (our reserve).

    `largest` is how large a file may become, where no filesystem bounds it.
    """

    uid: int
    gid: int
    processes: int
    files: tuple[int, int]
    largest: int | None = None


class End(NamedTuple):
    """How a process ended, and the kernel's account of what it and the children it waited for have used."""

    status: int
    usage: resource.struct_rusage


class Child:
    """A process of ours. `exited` becomes readable when it has ended and `status` is known."""

    def __init__(self, pid: int, mark: int, exited: int, notify: int) -> None:
        self.pid = pid
        self.mark = mark
        self.exited = exited
        self._notify = notify
        self.status: int | None = None
        self.cpu_seconds = 0.0
        self.peak_memory = 0

    def ended(self, end: End) -> None:
        self.status = end.status
        self.cpu_seconds = end.usage.ru_utime + end.usage.ru_stime
        self.peak_memory = end.usage.ru_maxrss * 1024
        os.close(self._notify)

    def close(self) -> None:
        os.close(self.exited)


class Streams(NamedTuple):
    stdin: int
    stdout: int
    stderr: int


class Screen(NamedTuple):
    """A terminal that the process shall have; `channel` is where it sends the other end."""

    channel: socket.socket
    cols: int
    rows: int


class Processes:
    """The table of our children.

    A child may end before it is in the table, so while one is being started, statuses of strangers are kept.
    """

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self._children: dict[int, Child] = {}
        self._early: dict[int, End] = {}
        self._starting = 0
        self._lock = threading.Lock()
        self._marks = _MARK_BASE

    def spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        streams: Streams,
        screen: Screen | None = None,
    ) -> Child:
        assert self.identity is not None, "bind comes first"
        exited, notify = os.pipe()
        failed, tell = os.pipe()
        mark = self._announce()
        pid = 0
        try:
            pid = _popen(argv, env, streams, _becomer(self.identity, mark, cwd, tell, screen), failed)
            return self._enter(Child(pid, mark, exited, notify))
        finally:
            self._conclude()
            os.close(failed)
            os.close(tell)
            if not pid:
                os.close(exited)
                os.close(notify)

    def _announce(self) -> int:
        with self._lock:
            self._starting += 1
            self._marks += 1
            return self._marks

    def _enter(self, child: Child) -> Child:
        with self._lock:
            end = self._early.pop(child.pid, None)
            if end is None:
                self._children[child.pid] = child
        if end is not None:
            child.ended(end)
        return child

    def _conclude(self) -> None:
        with self._lock:
            self._starting -= 1
            if not self._starting:
                self._early.clear()

    def reap(self) -> None:
        """Collect whatever has ended: our children, and orphans that PID 1 inherited."""
        self._wake_stopped()
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            with self._lock:
                child = self._children.pop(pid, None)
                if child is None and self._starting:
                    self._early[pid] = End(status, usage)
            if child is not None:
                child.ended(End(status, usage))

    def _wake_stopped(self) -> None:
        """The user may stop a child that is that user but not yet its program: we would wait for ever."""
        while True:
            try:
                told = os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WNOHANG)
            except (ChildProcessError, OSError):
                return
            if told is None:
                return
            with self._lock:
                starting = told.si_pid not in self._children and self._starting > 0
            if starting and _command_line(told.si_pid) == _command_line(os.getpid()):
                signal_all({told.si_pid}, signal.SIGCONT)


def _command_line(pid: int) -> bytes:
    """A child that does not run its program yet has ours; one that runs it may stop itself."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _popen(
    argv: Sequence[str], env: Mapping[str, str], streams: Streams, become: Callable[[], None], failed: int
) -> int:
    try:
        process = subprocess.Popen(
            argv,
            env=env,
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr,
            preexec_fn=become,
            start_new_session=True,
        )
    except OSError as exc:
        raise CannotStart(exc.errno or 0) from exc
    except subprocess.SubprocessError as exc:
        os.set_blocking(failed, False)
        if _read_or_nothing(failed) == b"cwd":
            raise NoSuchDirectory from exc
        raise
    # The reaper alone waits for children; this keeps Popen from ever doing so.
    process.returncode = 0
    return process.pid


def _becomer(identity: Identity, mark: int, cwd: str, tell: int, screen: Screen | None) -> Callable[[], None]:
    """What the child does between fork and exec. Order matters twice.

    The process limit comes after setuid: a user at its limit could otherwise not start anything, and a fork
    bomb would lock its owner out. The directory is entered as the user, who alone may enter its own.
    """

    def become() -> None:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        os.umask(0o022)
        for number in _MAY_BE_IGNORED:  # a program inherits what its parent ignores
            signal.signal(number, signal.SIG_DFL)
        os.setgroups([])
        os.setresgid(identity.gid, identity.gid, identity.gid)
        os.setresuid(identity.uid, identity.uid, identity.uid)
        _limit(resource.RLIMIT_NPROC, identity.processes)
        resource.setrlimit(resource.RLIMIT_NOFILE, identity.files)
        _limit(resource.RLIMIT_RTTIME, mark)
        if identity.largest is not None:
            _limit(resource.RLIMIT_FSIZE, identity.largest)
        try:
            os.chdir(cwd)
        except OSError:
            os.write(tell, b"cwd")
            raise
        if screen is not None:
            terminal.take(*screen)

    return become


def _limit(which: int, value: int) -> None:
    # gVisor knows few limits; the container's own still hold there.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(which, (value, value))


def _read_or_nothing(fd: int) -> bytes:
    try:
        return os.read(fd, 16)
    except BlockingIOError:
        return b""
