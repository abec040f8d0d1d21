"""A gigabyte goes up and comes down through the server's processes without staying in any of them."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile.invariants import GROWTH, footprint
from plain import open_in
from stack import Stack, docker, running

GIB = 1 << 30
PIECE = os.urandom(1 << 20)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Half of the storage is the most that one tenant gets."""
    with running(SANDBOX_STORAGE_SIZE="6g") as server:
        yield server


class Peaks:
    """The most memory that each process of the server has had in the block, looked at ten times a second."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._before = footprint(stack)
        self._most = {pid: memory for pid, (memory, _, _) in self._before.items()}
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look_on)

    def __enter__(self) -> Peaks:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join(timeout=60)

    def _look_on(self) -> None:
        while not self._over.wait(0.1):
            for pid, (memory, _, _) in footprint(self._stack).items():
                self._most[pid] = max(memory, self._most.get(pid, 0))

    def growth(self) -> dict[int, int]:
        """By pid. One that began meanwhile has grown from nothing."""
        return {pid: most - self._before.get(pid, (0, 0, 0))[0] for pid, most in self._most.items()}


def out_of_memory(container: str) -> int:
    """How often the kernel has killed something in it, of either version of control groups."""
    pid = docker("inspect", "-f", "{{.State.Pid}}", container).strip()
    places = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    found = {name: Path("/sys/fs/cgroup", name, place.lstrip("/")) for _, name, place in places}
    path = found["memory"] / "memory.oom_control" if "memory" in found else found[""] / "memory.events"
    told = dict(line.split() for line in path.read_text().splitlines())
    return int(told["oom_kill"])


@pytest.mark.timeout(300)  # where disk and cores are busy with others, too, it takes a minute
def test_a_gigabyte_goes_up_and_down_with_flat_memory(stack: Stack) -> None:
    """The sandbox has an eighth of that as its memory, so the guest cannot hold it either."""
    session = open_in(stack, disk=2 * GIB, memory=128 << 20)
    path = f"/v1/sessions/{session.id}/files/content?path=large.bin"
    with Peaks(stack) as peaks:
        sent = stack.call("PUT", path, data=itertools.repeat(PIECE, GIB // len(PIECE)), timeout=110)
        assert sent.json()["size"] == GIB
        with stack.call("GET", path, stream=True, timeout=110) as answer:
            assert answer.headers["Content-Length"] == str(GIB)
            assert sum(piece == PIECE for piece in answer.iter_content(len(PIECE))) == GIB // len(PIECE)
    assert len(peaks.growth()) >= 4, "the keeper, gunicorn's own process and two workers"
    assert max(peaks.growth().values()) < GROWTH, peaks.growth()
    assert out_of_memory(session.container) == 0
    assert session.output("stat -c %s large.bin") == f"{GIB}\n"
    session.close()
