"""Programs that work on the user's files for us, as processes of the user's own.

What takes long or much memory is not done in PID 1, whose end is the session's.
"""

from __future__ import annotations

import errno
import os
import time

from .capture import Output
from .ground import Ground
from .processes import CannotStart, NoSuchDirectory, Streams
from .refused import Refused, refusal_of
from .streams import Reader
from .trees import kill_tree, now_ticks

_KEPT = 8 << 10  # bytes of what it complains about
_TELLING = (
    errno.EDQUOT,
    errno.ENOSPC,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.ENOTEMPTY,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENOENT,
)


def run(ground: Ground, argv: list[bytes], cwd: str, seconds: float) -> None:
    """To its end. Refused for the reason it gives when it fails, and when time is up."""
    since = now_ticks()
    read, write = os.pipe()
    os.set_blocking(read, False)
    null = os.open(os.devnull, os.O_RDWR)
    try:
        words = [os.fsdecode(word) for word in argv]
        env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
        child = ground.processes.spawn(words, env, cwd, Streams(null, null, write))
    except (CannotStart, NoSuchDirectory) as exc:
        os.close(read)
        raise Refused("cannot_touch") from exc
    finally:
        os.close(null)
        os.close(write)
    output = Output(_KEPT)
    reader = Reader({read: "stderr"}, output)
    reader.watch(child.exited)
    try:
        in_time = reader.wait(time.monotonic() + seconds) is not None
    finally:
        if child.status is None:
            kill_tree(child.pid, child.mark, since, spare_root=False)
        for held in reader.finish():
            os.close(held)
        child.close()
    if not in_time:
        raise Refused("operation_timeout")
    if child.status:
        raise _reason(b"".join(output.streams["stderr"].parts()))


def _reason(said: bytes) -> Refused:
    for number in _TELLING:
        if os.strerror(number).encode() in said:
            return refusal_of(OSError(number, ""))
    return Refused("cannot_touch")
