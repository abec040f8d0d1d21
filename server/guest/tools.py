"""Our own scripts at work for a caller: processes of the user's, between its files and the connection.

They end with the caller: whoever hangs up, or takes and sends nothing for too long, ends them with all that
they have started. What they say is the user's word: short, parsed with care, and only handed on.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from contextlib import contextmanager
from typing import Iterator

from .bell import HungUp
from .files import Files, named, told
from .processes import CannotStart, Child, NoSuchDirectory, Streams
from .protocol import PIECE, STALLED, Head
from .refused import CODES, Refused
from .transfers import Line
from .trees import kill_tree, now_ticks

_PATH = "/usr/local/bin:/usr/bin:/bin"  # the image's own, whatever the session's PATH says
_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from {}.{} import main; main()"
_MOST_SAID = 64 << 10
_FINISHING = 300.0  # seconds that a script may go on after it has been given everything
_PARTING = 1.0
_TOLD = (
    "path",
    "entries",
    "bytes",
    "skipped",
    "files",
    "directories",
    "skipped_count",
    "searched",
    "truncated",
)
_REFUSALS = {
    *CODES.values(),
    "too_large",
    "file_changed",
    "invalid_archive",
    "invalid_pattern",
    "invalid_glob",
}


def pack(files: Files, head: Head, line: Line) -> None:
    _give(files, "archives.pack", _asked(files, head, "format", "limit"), line)


def unpack(files: Files, head: Head, line: Line) -> None:
    _take(files, "archives.unpack", _asked(files, head, "format", "limit"), line)


def search(files: Files, head: Head, line: Line) -> None:
    wish = ("pattern", "regex", "ignore_case", "glob", "context", "limit", "seconds")
    _give(files, "search", _asked(files, head, *wish), line)


def _asked(files: Files, head: Head, *names: str) -> Head:
    roots = [told(root) for root in (files.roots.home, *files.roots.others)]
    return {"roots": roots, "path": told(named(head)), **{name: head[name] for name in names}}


def _give(files: Files, module: str, asked: Head, line: Line) -> None:
    """What the script writes goes to the peer, between the two things that it says."""
    with _running(files, module, asked, line) as tool:
        tool.feed_no_more()
        line.begin(tool.said(STALLED))
        line.ask()
        while piece := tool.written():
            line.give(piece)
        line.end(tool.said(STALLED))


def _take(files: Files, module: str, asked: Head, line: Line) -> None:
    """What the peer sends goes to the script."""
    left = int(asked["limit"])
    with _running(files, module, asked, line) as tool:
        line.begin(tool.said(STALLED))
        while (piece := line.take()) is not None:
            left -= len(piece)
            if left < 0:
                raise Refused("too_large")
            if not tool.feed(piece):
                break  # it will say why
        tool.feed_no_more()
        line.end(tool.said(_FINISHING))


@contextmanager
def _running(files: Files, module: str, asked: Head, line: Line) -> Iterator[_Tool]:
    if not files.tools.acquire(blocking=False):
        raise Refused("too_many_streams")
    try:
        since = now_ticks()
        child, ends = _started(files, module, asked)
        tool = _Tool(ends, line.fileno())
        try:
            yield tool
        finally:
            tool.close()  # first, so that it sees that nobody is there and puts away what it was writing
            _ended(child)
            if child.status is None:
                kill_tree(child.pid, child.mark, since, spare_root=False)
            child.close()
    finally:
        files.tools.release()


def _started(files: Files, module: str, asked: Head) -> tuple[Child, Streams]:
    """The process, and our ends of its pipes."""
    pipes: list[tuple[int, int]] = []
    child = None
    try:
        for _ in range(3):
            pipes.append(os.pipe())
        (their_in, our_in), (our_out, their_out), (our_err, their_err) = pipes
        argv = [shutil.which("python3", path=_PATH) or "python3", "-IS", "-c"]
        argv += [
            _START.format(os.path.basename(_PACKAGE), module),
            os.path.dirname(_PACKAGE),
            json.dumps(asked),
        ]
        theirs = Streams(their_in, their_out, their_err)
        child = files.ground.processes.spawn(argv, {"PATH": _PATH, "LANG": "C.UTF-8"}, "/", theirs)
    except (CannotStart, NoSuchDirectory, subprocess.SubprocessError, OSError) as exc:
        raise Refused("cannot_touch") from exc
    finally:
        for fd in theirs if child else sum(pipes, ()):
            os.close(fd)
    return child, Streams(our_in, our_out, our_err)


class _Tool:
    """Our side of a script that runs. Each wait ends when the peer hangs up, too."""

    def __init__(self, ends: Streams, peer: int) -> None:
        self._ends = ends
        self._peer = peer
        self._open = set(ends)
        self._said = bytearray()
        for fd in ends:
            os.set_blocking(fd, False)

    def feed(self, piece: memoryview) -> bool:
        """False if it takes no more."""
        while piece:
            if not self.wait(self._ends.stdin, select.POLLOUT, STALLED):
                raise Refused("operation_timeout")
            try:
                piece = piece[os.write(self._ends.stdin, piece) :]
            except BlockingIOError:
                continue  # there is room, but less than a page
            except BrokenPipeError:
                return False
        return True

    def feed_no_more(self) -> None:
        self._close(self._ends.stdin)

    def written(self) -> bytes:
        """The next piece; nothing at its end."""
        if not self.wait(self._ends.stdout, select.POLLIN, STALLED):
            raise Refused("operation_timeout")
        return os.read(self._ends.stdout, PIECE)

    def said(self, seconds: float) -> Head:
        """The next thing that it says. If that is a refusal, it is raised."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._said:
            if not self.wait(self._ends.stderr, select.POLLIN, deadline - time.monotonic()):
                raise Refused("operation_timeout")
            more = os.read(self._ends.stderr, _MOST_SAID)
            if not more or len(self._said) + len(more) > _MOST_SAID:
                raise Refused("tool_failed")  # killed, most likely: for want of memory, or by the user
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        said = _parsed(bytes(line))
        if said.get("ok") is not True:
            code = said.get("code")
            raise Refused(code if isinstance(code, str) and code in _REFUSALS else "tool_failed")
        return {name: value for name, value in said.items() if name in _TOLD and _is_plain(value)}

    def wait(self, fd: int, event: int, seconds: float) -> bool:
        poll = select.poll()
        poll.register(fd, event)
        poll.register(self._peer, select.POLLRDHUP)
        ready = dict(poll.poll(max(0.0, seconds) * 1000))
        if self._peer in ready:
            raise HungUp
        return fd in ready

    def close(self) -> None:
        for fd in list(self._open):
            self._close(fd)

    def _close(self, fd: int) -> None:
        if fd in self._open:
            self._open.discard(fd)
            os.close(fd)


def _ended(child: Child) -> None:
    poll = select.poll()
    poll.register(child.exited, select.POLLIN)
    poll.poll(_PARTING * 1000)


def _is_plain(value: object) -> bool:
    """A number or text, or a list of pairs of texts: nothing that could be nested."""
    if isinstance(value, list):
        return all(isinstance(pair, list) and all(isinstance(one, str) for one in pair) for pair in value)
    return isinstance(value, (int, str))


def _parsed(line: bytes) -> Head:
    try:
        said = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        raise Refused("tool_failed") from exc
    if not isinstance(said, dict):
        raise Refused("tool_failed")
    return said
