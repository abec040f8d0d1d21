"""Waiting until a name appears in a directory, told by the kernel (inotify) rather than by looking again."""

from __future__ import annotations

import ctypes
import os
import select
import threading
import time
from pathlib import Path

from server.keeper.runtime import Runtime, RuntimeFailed

_IN_MOVED_TO = 0x80
_IN_CLOEXEC = os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


def wait_for_name(path: Path, seconds: float) -> bool:
    """True once `path` exists; it must come by a rename, so that it is complete when it is seen."""
    deadline = time.monotonic() + seconds
    watch = _libc.inotify_init1(_IN_CLOEXEC)
    if watch < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    try:
        if _libc.inotify_add_watch(watch, os.fsencode(path.parent), _IN_MOVED_TO) < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch")
        poll = select.poll()
        poll.register(watch, select.POLLIN)
        while not path.exists():
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return path.exists()
            os.read(watch, 4096)
        return True
    finally:
        # Apart: the kernel waits some 15 ms for everybody who might still look at it.
        threading.Thread(target=os.close, args=(watch,), daemon=True).start()


def wait_for_guest(runtime: Runtime, sandbox: str, path: Path, seconds: float) -> None:
    """In slices, so that a container that died at once is not waited for to the end."""
    deadline = time.monotonic() + seconds
    while not wait_for_name(path, 1.0):
        seen = runtime.inspect(sandbox)
        if seen is None or seen.cause is not None or time.monotonic() > deadline:
            raise RuntimeFailed(
                "The sandbox did not start. Check that its image was built by ./quickstart.sh."
            )
