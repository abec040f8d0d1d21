"""Attacks on what all sandboxes of a kernel share (A85, A86)."""

from __future__ import annotations

import json
from pathlib import Path

from invariants import Neighbour, Session

INOTIFY = """
import ctypes, errno, time
libc = ctypes.CDLL(None, use_errno=True); n = 0
while libc.inotify_init() >= 0: n += 1
print(n, flush=True); time.sleep({hold})
"""
TERMINALS = """
import os, resource, time
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096)); n = 0
try:
    while True: os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY); n += 1
except OSError: pass
print(n, flush=True); time.sleep({hold})
"""
POOLS = """
import ctypes, json, socket
libc = ctypes.CDLL(None, use_errno=True); context = ctypes.c_ulong(0)
asynchronous = libc.syscall(206, 65536, ctypes.byref(context))
key = libc.syscall(248, b"user", b"x", b"y", 1, -3)
print(json.dumps([asynchronous, key]))
"""


def hold(session: Session, code: str, times: int) -> None:
    session.run(f"for i in $(seq {times}); do python3 -c '{code.format(hold=15)}' & done; sleep 2", timeout=8)


def test_a85_a_sandbox_that_takes_all_its_inotify_instances_leaves_the_neighbours_theirs(
    session: Session, neighbour: Neighbour
) -> None:
    hold(session, INOTIFY, 2)
    assert int(neighbour.session.run(["python3", "-c", INOTIFY.format(hold=0)])["stdout"]) >= 64


def test_a86_a_sandbox_that_takes_every_terminal_it_can_leaves_the_neighbours_some(
    session: Session, neighbour: Neighbour
) -> None:
    """Terminals are host-wide: quickstart raises kernel.pty.max; a machine without that fails here."""
    try:
        hold(session, TERMINALS, 12)
        limit = Path("/proc/sys/kernel/pty/max").read_text().strip()
        opened = int(
            neighbour.session.run(
                ["python3", "-c", TERMINALS.replace("while True", "for _ in range(9)").format(hold=0)]
            )["stdout"]
        )
        assert opened == 9, f"kernel.pty.max is {limit}: one sandbox took all the terminals"
    finally:
        session.close()


def test_pools_of_the_whole_machine_cannot_be_drawn_on(session: Session) -> None:
    """Kernel AIO contexts and keys: one pool for everybody, so nobody gets any."""
    assert json.loads(session.run(["python3", "-c", POOLS])["stdout"]) == [-1, -1]


def test_open_files_of_a_session_are_bounded(session: Session) -> None:
    """By the limit of each process and the number of processes: far below what the machine has."""
    most = int(session.run("ulimit -Hn")["stdout"])
    assert most <= 4096
