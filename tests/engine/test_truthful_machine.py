"""Inside a sandbox programs see the session's CPUs and memory, not the host's: thread pools fit."""

from __future__ import annotations

import pytest
from plain import Open

COUNTS = {
    "nproc": "nproc",
    "the C library": "getconf _NPROCESSORS_ONLN",
    "Python": "python3 -c 'import os; print(os.cpu_count())'",
    "Python's pools": "python3 -c 'from multiprocessing.pool import ThreadPool as T; print(T()._processes)'",
    "Node": "node -p 'os.cpus().length'",
    "/proc/cpuinfo": "grep -c ^processor /proc/cpuinfo",
    "/proc/stat": "grep -c '^cpu[0-9]' /proc/stat",
    "OpenMP": "echo $OMP_NUM_THREADS",
    "OpenBLAS": "echo $OPENBLAS_NUM_THREADS",
}


# Bytes; each may round, or keep something to itself.
MEMORY = {
    "/proc/meminfo": "awk '/MemTotal/ {print $2 * 1024}' /proc/meminfo",
    "free": "free -b | awk '/Mem/ {print $2}'",
    "what is available": "free -b | awk '/Mem/ {print $7}'",
    "Node": "node -p 'os.totalmem()'",
}


@pytest.mark.parametrize(("cpus", "seen"), [(0.5, 1), (1, 1), (2, 2)])
def test_programs_see_the_cpus_of_the_session(opened: Open, cpus: float, seen: int) -> None:
    session = opened(cpus=cpus)
    assert {name: session.output(command) for name, command in COUNTS.items()} == dict.fromkeys(
        COUNTS, f"{seen}\n"
    )


def test_what_they_see_cannot_be_changed(opened: Open) -> None:
    session = opened()
    said = session.execute("echo 0-63 >/sys/devices/system/cpu/online").json()
    assert said["exit_code"] != 0
    assert session.output("cat /sys/devices/system/cpu/online") == "0\n"


def test_the_callers_own_numbers_win(opened: Open) -> None:
    assert opened(env={"OMP_NUM_THREADS": "7"}).output("echo $OMP_NUM_THREADS") == "7\n"


def test_programs_that_ask_for_the_memory_limit_get_it(opened: Open) -> None:
    session = opened(memory=256 << 20)
    limit = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null"
    assert session.output(limit) == f"{256 << 20}\n"


def test_tools_see_the_memory_of_the_session(opened: Open) -> None:
    session = opened(memory=256 << 20)
    assert {name: int(session.output(command)) for name, command in MEMORY.items()} == dict.fromkeys(
        MEMORY, 256 << 20
    )


def test_nodes_heap_fits_into_the_memory_of_the_session(opened: Open) -> None:
    session = opened(memory=1 << 30)
    assert int(session.output("node -p 'v8.getHeapStatistics().heap_size_limit'")) < 1 << 30


def test_tools_that_read_these_files_work(opened: Open) -> None:
    """They are not the kernel's own, and do not change: a tool that divides by what changed must not fail."""
    session = opened()
    for command in ("top -bn2 -d0.1", "ps aux", "uptime", "lscpu"):
        answer = session.execute(command).json()
        assert (answer["exit_code"], answer["stderr"]) == (0, ""), command


def test_how_busy_the_host_is_cannot_be_seen_there(opened: Open) -> None:
    assert opened().output("head -1 /proc/stat") == "cpu  0 0 0 0 0 0 0 0 0 0\n"
