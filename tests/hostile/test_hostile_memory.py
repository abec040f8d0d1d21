"""Attacks on memory (A10 to A13)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from invariants import Neighbour, Session, Tenant, eventually, is_problem
from stack import Stack

HOG = "x = []\nwhile True: x.append(bytearray(b'x') * (16 << 20))"
SHARED_HOG = """
import mmap
kept = []
while True:
    kept.append(mmap.mmap(-1, 64 << 20))
    kept[-1].write(bytes([1]) * (64 << 20))
"""
SOCKET_HOG = """
import socket, time
listener = socket.create_server(("127.0.0.1", 0)); kept = []
for _ in range(250):
    sender = socket.create_connection(listener.getsockname()); kept.append((sender, listener.accept()[0]))
    sender.setblocking(False)
    try:
        while True: sender.send(bytes(1 << 20))
    except BlockingIOError: pass
print("full", flush=True); time.sleep(3)
"""


def test_a10_only_the_process_that_takes_too_much_memory_dies(session: Session, neighbour: Neighbour) -> None:
    """137 with `oom_killed`; the shell's state survives."""
    session.run("x=kept")
    with neighbour.undisturbed():
        result = session.run(["python3", "-c", HOG], timeout=10)
    assert (result["exit_code"], result["signal"], result["oom_killed"]) == (137, "SIGKILL", True)
    assert session.run("echo $x")["stdout"] == "kept\n"


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_a11_a_filesystem_in_memory_is_full_at_its_size(session: Session, place: str) -> None:
    result = session.run(f"dd if=/dev/zero of={place}/x bs=1M; rm -f {place}/x", timeout=10)
    assert "No space left" in result["stderr"] or result["oom_killed"]
    session.is_usable()


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_empty_files_in_memory_come_to_an_end_before_the_memory_does(session: Session, place: str) -> None:
    """Nobody could be killed to free what names take."""
    result = session.run(f"cd {place} && seq 20000 | xargs touch; ls | wc -l; rm -rf {place}/*", timeout=30)
    assert "No space left" in result["stderr"] and not result["oom_killed"]
    assert 1000 < int(result["stdout"]) < 17000
    session.is_usable()


def test_a12_many_small_hogs_end_the_session_with_its_cause_or_not_at_all(
    session: Session, neighbour: Neighbour
) -> None:
    """Fifty processes that make themselves as unlikely to be killed as they may."""
    hog = "exec python3 -c 'x = bytearray(b\"x\") * (9 << 20); import time; time.sleep(4)'"
    unlikely = "for n in 0 500; do echo $n >/proc/self/oom_score_adj; done"
    with neighbour.undisturbed():
        session.execute(f"for i in $(seq 50); do ({unlikely}; {hog}) & done; wait", timeout=5)
    began = time.monotonic()
    answer = session.execute("echo alive", timeout=5)
    assert time.monotonic() - began < 8
    if answer.status_code != 200:
        assert is_problem(answer, "session_ended")["cause"] == "oom"


def test_a13_a_storm_of_hogs_disturbs_nobody(session: Session, stack: Stack, neighbour: Neighbour) -> None:
    """Killed again and again for some seconds; the log does not grow with it."""
    logged = len(stack.log("web")) + len(stack.log("keeper"))
    with neighbour.undisturbed():
        session.execute(f"while :; do python3 -c '{HOG}'; done & cat /dev/zero | tail", timeout=5)
    assert len(stack.log("web")) + len(stack.log("keeper")) - logged < 200_000


def test_a_guest_under_its_own_load_of_input_ends_with_a_cause_or_not_at_all(attacker: Tenant) -> None:
    """64 MiB of memory and 60 MB of input: whatever happens is told, and nothing hangs."""
    session = attacker.open(memory=64 << 20)
    answer = session.execute(["wc", "-c"], stdin="x" * 60_000_000, timeout=5)
    if answer.status_code != 200:
        is_problem(answer, "session_ended", "guest_unavailable")
    answer = session.execute("echo alive", timeout=5)
    assert answer.status_code == 200 or is_problem(answer, "session_ended")["cause"] == "oom"


def test_buffers_of_sockets_do_not_escape_the_memory_limit(session: Session) -> None:
    """TCP over the loopback: its buffers are the kernel's, and one pool serves the whole machine."""

    def pages() -> int:
        fields = next(
            line for line in Path("/proc/net/sockstat").read_text().splitlines() if line.startswith("TCP:")
        )
        return int(fields.split()[-1])

    before = pages()
    session.execute(["bash", "-c", f"python3 -c '{SOCKET_HOG}' & sleep 2"], timeout=6)
    taken = (pages() - before) * 4096
    session.close()
    assert taken < 300 << 20, f"{taken >> 20} MiB beyond a limit of 256 MiB"


def test_memory_of_dead_shared_segments_is_given_back_with_the_session(session: Session) -> None:
    """System V segments outlive their makers: they count against the session, and go with it."""
    made = session.run(
        "for i in $(seq 20); do ipcmk -M 20M >/dev/null || break; done; ipcs -m | grep -c 0x", timeout=10
    )
    assert made["exit_code"] == 0
    assert session.run(["python3", "-c", SHARED_HOG], timeout=10)["oom_killed"]
    eventually(session.is_usable, 5)
