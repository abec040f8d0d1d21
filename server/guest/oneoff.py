"""A command as a process of its own: it keeps no state and runs beside everything else."""

from __future__ import annotations

import errno
import os
import time

from .capture import Output
from .ground import Ground
from .processes import CannotStart, Child, Processes, Streams, kill_tree, now_ticks
from .streams import Feeder, Reader
from .work import TIMED_OUT_CODE, Outcome, Work, decode_status

_NOT_FOUND = 127
_NOT_EXECUTABLE = 126


def run(work: Work, ground: Ground, limit: int) -> Outcome:
    argv = ["/bin/bash", "-c", work.command] if isinstance(work.command, str) else work.command
    cwd, env = work.cwd or ground.home, {**ground.env, **work.env}
    output = Output(limit)
    since = now_ticks()
    try:
        child, pipes = _start(argv, work, ground.processes, env, cwd)
    except CannotStart as exc:
        return _not_started(argv[0], exc.errno, env.get("PATH", ""), output, cwd)
    deadline = time.monotonic() + work.timeout
    reader = Reader({pipes[0]: "stdout", pipes[1]: "stderr"}, output)
    reader.watch(child.exited)
    timed_out = reader.wait(deadline) is None
    if timed_out:
        kill_tree(child.pid, child.mark, since, spare_root=False)
        reader.wait(time.monotonic() + 2)
    ground.drain.adopt(reader.finish())
    child.close()
    code, name = decode_status(child.status if child.status is not None else 9)
    if timed_out:
        code = TIMED_OUT_CODE
    return Outcome(output, cwd, code, name, timed_out)


def _start(
    argv: list[str], work: Work, processes: Processes, env: dict[str, str], cwd: str
) -> tuple[Child, tuple[int, int]]:
    """The child, and the reading ends of its output. Whatever can fail does so before it is started."""
    stdin = _stdin(work)
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    os.set_blocking(out_read, False)
    os.set_blocking(err_read, False)
    try:
        child = processes.spawn(argv, env, cwd, Streams(stdin, out_write, err_write))
    except BaseException:
        os.close(out_read)
        os.close(err_read)
        raise
    finally:
        for fd in (stdin, out_write, err_write):
            os.close(fd)
    return child, (out_read, err_read)


def _stdin(work: Work) -> int:
    if work.stdin is None:
        return os.open(os.devnull, os.O_RDONLY)
    read, write = os.pipe()
    Feeder(work.stdin, lambda: write)
    return read


def _not_started(program: str, code: int, path: str, output: Output, cwd: str) -> Outcome:
    """What bash would say and give: 127 for what is not there, 126 for what cannot be run."""
    missing = code == errno.ENOENT or (code == errno.EACCES and not _exists(program, path))
    reason = "command not found" if missing else os.strerror(code)
    output.add("stderr", f"bash: {program[:200]}: {reason}\n".encode("utf-8", "replace"))
    return Outcome(output, cwd, _NOT_FOUND if missing else _NOT_EXECUTABLE)


def _exists(program: str, path: str) -> bool:
    """A directory of the PATH that may not be entered is no reason to say that the program may not be run."""
    if "/" in program:
        return True
    return any(os.path.exists(os.path.join(place, program)) for place in path.split(":"))
