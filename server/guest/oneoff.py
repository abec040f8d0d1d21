"""A command as a process of its own: it keeps no state and runs beside everything else."""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import NamedTuple

from . import terminal
from .capture import Output
from .ground import Ground
from .processes import CannotStart, Child, Screen, Streams
from .stdin import Input
from .streams import Feeder, Reader
from .trees import kill_tree, now_ticks
from .usage import Meter
from .work import TIMED_OUT_CODE, Outcome, Work, decode_status

_NOT_FOUND = 127
_NOT_EXECUTABLE = 126


class _Place(NamedTuple):
    """Where a command runs, and under which variables."""

    ground: Ground
    cwd: str
    env: dict[str, str]


def run(work: Work, ground: Ground, output: Output) -> Outcome:
    argv = ["/bin/bash", "-c", work.command] if isinstance(work.command, str) else work.command
    place = _Place(ground, work.cwd or ground.home, {**ground.env, **work.env})
    since = now_ticks()
    try:
        child, ends = (_start_on_terminal if work.screen else _start)(argv, work, place)
    except CannotStart as exc:
        return _not_started(argv[0], exc.errno, place, output)
    reader = Reader(ends, output)
    reader.watch(child.exited)
    meter = Meter(child, since, kept=False)
    timed_out = False
    try:
        work.control.begin(child, since, kept=False, meter=meter)
        timed_out = not _ended(reader, meter, time.monotonic() + work.timeout)
    finally:
        if child.status is None:
            meter.now()
            kill_tree(child.pid, child.mark, since, spare_root=False)
            reader.wait(time.monotonic() + 2)
        work.control.finish()
        _let_go(reader.finish(), work, ground)
        child.close()
    code, name = decode_status(child.status if child.status is not None else 9)
    code = TIMED_OUT_CODE if timed_out else code
    return Outcome(output, place.cwd, code, name, timed_out=timed_out, usage=meter.of_process())


def _ended(reader: Reader, meter: Meter, deadline: float) -> bool:
    while reader.wait(min(deadline, meter.next_look)) is None:
        if time.monotonic() >= deadline:
            return False
        meter.look()
    return True


def _start(argv: list[str], work: Work, place: _Place) -> tuple[Child, dict[int, str]]:
    """The child, and the reading ends of its output. Whatever can fail does so before it is started."""
    stdin = _stdin(work)
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    os.set_blocking(out_read, False)
    os.set_blocking(err_read, False)
    try:
        streams = Streams(stdin, out_write, err_write)
        child = place.ground.processes.spawn(argv, place.env, place.cwd, streams)
    except BaseException:
        os.close(out_read)
        os.close(err_read)
        raise
    finally:
        for fd in (stdin, out_write, err_write):
            os.close(fd)
    return child, {out_read: "stdout", err_read: "stderr"}


def _start_on_terminal(argv: list[str], work: Work, place: _Place) -> tuple[Child, dict[int, str]]:
    assert work.screen is not None
    null = os.open(os.devnull, os.O_RDWR)
    here, there = socket.socketpair()
    since = now_ticks()
    with here:
        with there:  # no longer: if its process dies, the other end shall hear of it
            try:
                screen = Screen(there, *work.screen)
                streams = Streams(null, null, null)
                child = place.ground.processes.spawn(argv, place.env, place.cwd, streams, screen)
            finally:
                os.close(null)
        try:
            master = terminal.receive(here)
        except OSError as exc:
            kill_tree(child.pid, child.mark, since, spare_root=False)
            child.close()
            raise CannotStart(errno.EIO) from exc
    work.control.stdin = Input(os.dup(master), is_terminal=True)
    return child, {master: "stdout"}


def _stdin(work: Work) -> int:
    if work.stdin is None and not work.open_stdin:
        return os.open(os.devnull, os.O_RDONLY)
    read, write = os.pipe()
    if work.open_stdin:
        work.control.stdin = Input(write)
    else:
        Feeder(work.stdin or b"", lambda: write)
    return read


def _let_go(held: list[int], work: Work, ground: Ground) -> None:
    """What background processes hold is read on and forgotten; a terminal is closed, and hangs up on them."""
    if work.screen is None:
        ground.drain.adopt(held)
    else:
        for fd in held:
            os.close(fd)


def _not_started(program: str, code: int, place: _Place, output: Output) -> Outcome:
    """What bash would say and give: 127 for what is not there, 126 for what cannot be run."""
    missing = code == errno.ENOENT or (code == errno.EACCES and not _exists(program, place.env))
    reason = "command not found" if missing else os.strerror(code)
    output.add("stderr", f"bash: {program[:200]}: {reason}\n".encode("utf-8", "replace"))
    return Outcome(output, place.cwd, _NOT_FOUND if missing else _NOT_EXECUTABLE)


def _exists(program: str, env: dict[str, str]) -> bool:
    """A directory of the PATH that may not be entered is no reason to say that the program may not be run."""
    if "/" in program:
        return True
    return any(os.path.exists(os.path.join(place, program)) for place in env.get("PATH", "").split(":"))
