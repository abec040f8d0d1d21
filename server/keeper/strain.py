"""Runs inside a throw-away sandbox, as its user: takes more than it may, and prints what came of it."""

import contextlib
import errno
import json
import os
import resource
import signal
import socket
import sys
import time

MEMORY, PROCESSES, CPUS = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
BURN_SECONDS = 1.0
MOST_CPU = 1.5  # times the quota: periods are not cut exactly


def memory():
    child = os.fork()
    if child == 0:
        held = []
        try:
            for _ in range(2 * MEMORY >> 20):
                held.append(b"x" * (1 << 20))
        except MemoryError:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "killed" if os.WTERMSIG(status) == signal.SIGKILL else "crashed"
    return "refused" if os.WEXITSTATUS(status) == 1 else "not stopped"


def processes():
    children = []
    try:
        for _ in range(PROCESSES + 64):
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            children.append(child)
    except OSError as exc:
        return "refused" if exc.errno == errno.EAGAIN else errno.errorcode.get(exc.errno, "failed")
    else:
        return "not stopped"
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def cpu():
    """As many as it has CPUs twice over spin for a while: together they get what one quota gives."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    children = []
    for _ in range(max(2, int(2 * CPUS))):
        child = os.fork()
        if child == 0:
            while time.monotonic() - began < BURN_SECONDS:
                pass
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return "held" if spent <= CPUS * (time.monotonic() - began) * MOST_CPU else "not stopped"


def network():
    try:
        with socket.socket() as outwards:
            outwards.settimeout(2)
            outwards.connect(("192.0.2.1", 80))
    except OSError as exc:
        nowhere = exc.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH)  # the latter is gVisor's word
        return "impossible" if nowhere else errno.errorcode.get(exc.errno or 0, "failed")
    return "possible"


TRIED = {
    "cpu beyond the quota": cpu,
    "processes beyond the limit": processes,
    "memory beyond the limit": memory,
    "a connection outwards": network,
}
print(json.dumps({name: TRIED[name]() for name in sys.argv[4:] or TRIED}))
