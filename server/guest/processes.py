"""Processes of the sandboxed user: starting them as that user, reaping them, and ending whole trees.

PID 1 inherits every orphan of the container. A child that left its tree with a double fork is still
recognised by a mark that no unprivileged process can raise again: the hard limit RLIMIT_RTTIME of the
command that started it, which `/proc/PID/limits` shows to everybody.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import Callable, Mapping, NamedTuple, Sequence

_MARK_BASE = 1 << 40  # microseconds; far beyond what a real-time limit is ever set to
_KILL_DEADLINE = 2.0
_MAY_BE_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_TICKS = os.sysconf("SC_CLK_TCK")


class CannotStart(Exception):
    """The program could not be started; `errno` is the operating system's reason."""

    def __init__(self, errno: int) -> None:
        super().__init__(os.strerror(errno))
        self.errno = errno


class NoSuchDirectory(Exception):
    """The working directory does not exist or may not be entered."""


@dataclass(frozen=True)
class Identity:
    """Whom commands run as. `processes` is the user's limit, below the container's (our reserve)."""

    uid: int
    gid: int
    processes: int
    files: tuple[int, int]


@dataclass
class Child:
    """A process of ours. `exited` becomes readable when it has ended and `status` is known."""

    pid: int
    mark: int
    exited: int
    _notify: int
    status: int | None = None

    def ended(self, status: int) -> None:
        self.status = status
        os.close(self._notify)

    def close(self) -> None:
        os.close(self.exited)


class Streams(NamedTuple):
    stdin: int
    stdout: int
    stderr: int


@dataclass
class Processes:
    """The table of our children.

    A child may end before it is in the table, so while one is being started, statuses of strangers are kept.
    """

    identity: Identity | None = None
    _children: dict[int, Child] = field(default_factory=dict)
    _early: dict[int, int] = field(default_factory=dict)
    _starting: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _marks: int = _MARK_BASE

    def spawn(self, argv: Sequence[str], env: Mapping[str, str], cwd: str, streams: Streams) -> Child:
        assert self.identity is not None, "bind comes first"
        exited, notify = os.pipe()
        failed, tell = os.pipe()
        mark = self._announce()
        pid = 0
        try:
            pid = _popen(argv, env, streams, _becomer(self.identity, mark, cwd, tell), failed)
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
            status = self._early.pop(child.pid, None)
            if status is None:
                self._children[child.pid] = child
        if status is not None:
            child.ended(status)
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
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            with self._lock:
                child = self._children.pop(pid, None)
                if child is None and self._starting:
                    self._early[pid] = status
            if child is not None:
                child.ended(status)

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
            if starting:
                signal_all({told.si_pid}, signal.SIGCONT)


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


def _becomer(identity: Identity, mark: int, cwd: str, tell: int) -> Callable[[], None]:
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
        try:
            os.chdir(cwd)
        except OSError:
            os.write(tell, b"cwd")
            raise

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


class _Stat(NamedTuple):
    parent: int
    started: int


def now_ticks() -> int:
    """The clock that process start times are told in."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)


def kill_tree(root: int, mark: int, since: int, spare_root: bool) -> None:
    """End every process that descends from `root`, or carries `mark`, and began at or after `since`.

    Stop first, kill after: a fork bomb that is only killed outruns the killer.
    """
    deadline = time.monotonic() + _KILL_DEADLINE
    stopped: set[int] = set()
    while time.monotonic() < deadline:
        victims = _victims(root, mark, since, spare_root)
        fresh = victims - stopped
        if not fresh:
            break
        signal_all(fresh, signal.SIGSTOP)
        stopped |= fresh
    signal_all(stopped, signal.SIGKILL)


def signal_tree(root: int, mark: int, since: int, *numbers: int) -> None:
    """Send signals to `root` and to what it has started since: what it started before is not meant.

    To `root` first: a bash whose child dies of SIGINT goes on, unless it was interrupted itself before.
    """
    pids = _victims(root, mark, since, spare_root=True)
    for number in numbers:
        signal_all({root}, number)
        signal_all(pids, number)


def signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def _victims(root: int, mark: int, since: int, spare_root: bool) -> set[int]:
    table = _table()
    children: dict[int, list[int]] = {}
    for pid, stat in table.items():
        children.setdefault(stat.parent, []).append(pid)
    found = {pid for pid in children.get(1, []) if table[pid].started >= since and _mark_of(pid) == mark}
    waiting = [root, *found]
    while waiting:
        for pid in children.get(waiting.pop(), []):
            if table[pid].started >= since and pid not in found:
                found.add(pid)
                waiting.append(pid)
    found.discard(root)
    if not spare_root and root in table:
        found.add(root)
    return found


def _table() -> dict[int, _Stat]:
    table = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if fields[0] not in (b"Z", b"X"):
            table[int(name)] = _Stat(parent=int(fields[1]), started=int(fields[19]))
    return table


def _mark_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            for line in file:
                if line.startswith(b"Max realtime timeout"):
                    hard = line.split()[4]
                    return int(hard) if hard.isdigit() else 0
    except OSError:
        pass
    return 0
