"""Counting over processes: what is in use is counted once, and what the dead had is counted out."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from server.tally import Tally

SPAWN = multiprocessing.get_context("spawn")
WORKERS = 2
ROOT = Path(__file__).resolve().parents[2]


def _work(path: Path, wishes: Connection) -> None:
    """A worker: carries out what it is told, until the other end is closed."""
    tally = Tally(path, WORKERS)
    while True:
        try:
            name, arguments = wishes.recv()
        except EOFError:
            return
        wishes.send(getattr(tally, name)(*arguments))


def _crowd(path: Path, most: int, go: Any, inside: Any, highest: Any) -> None:
    """Comes and goes; how many are inside at once is counted under a lock, by other means."""
    tally = Tally(path, WORKERS)
    tally.count("executions", "a")
    go.wait(20)
    for _ in range(2000):
        with tally.counted("executions", "a", most) as admitted:
            if admitted:
                with inside.get_lock():
                    inside.value += 1
                    highest.value = max(highest.value, inside.value)
                with inside.get_lock():
                    inside.value -= 1


class Worker:
    def __init__(self, path: Path) -> None:
        self._wishes, theirs = SPAWN.Pipe()
        self._process = SPAWN.Process(target=_work, args=(path, theirs))
        self._process.start()
        theirs.close()

    def ask(self, name: str, *arguments: Any) -> Any:
        self._wishes.send((name, arguments))
        assert self._wishes.poll(10), "no answer"
        return self._wishes.recv()

    def enter(self, tenant: str = "a", most: int = 100, kind: str = "executions") -> bool:
        return bool(self.ask("enter", kind, tenant, most))

    def count(self, tenant: str = "a", kind: str = "executions") -> int:
        return int(self.ask("count", kind, tenant))

    def kill(self) -> None:
        self._process.kill()
        self._process.join(10)
        self._wishes.close()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[[], Worker]]:
    made: list[Worker] = []

    def make() -> Worker:
        made.append(Worker(tmp_path / "tally"))
        return made[-1]

    yield make
    for one in made:
        one.kill()


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    return Tally(tmp_path / "tally", WORKERS)


def test_what_enters_is_counted_until_it_leaves(tally: Tally) -> None:
    assert tally.enter("executions", "a", 2) and tally.enter("executions", "a", 2)
    assert not tally.enter("executions", "a", 2)
    assert tally.count("executions", "a") == 2
    tally.leave("executions", "a")
    assert tally.enter("executions", "a", 2)


def test_kinds_and_tenants_are_counted_apart(tally: Tally) -> None:
    tally.enter("executions", "a", 9)
    tally.enter("streams", "b", 9)
    counts = [tally.count(kind, tenant) for kind in ("executions", "streams") for tenant in "ab"]
    assert counts == [1, 0, 0, 1]


def test_a_block_is_counted_while_it_lasts_however_it_ends(tally: Tally) -> None:
    with pytest.raises(ValueError), tally.counted("streams", "a", 1) as inside:
        assert inside and tally.count("streams", "a") == 1
        with tally.counted("streams", "a", 1) as second:
            assert not second
        raise ValueError
    assert tally.count("streams", "a") == 0


def test_leaving_once_too_often_counts_nobody_below_zero(tally: Tally) -> None:
    tally.leave("executions", "a")
    assert tally.count("executions", "a") == 0
    assert not tally.enter("executions", "a", 0)


def test_a_thousand_tenants_have_counters_of_their_own(tally: Tally) -> None:
    names = [f"tenant-{number}" for number in range(1000)]
    for number, name in enumerate(names):
        for _ in range(1 + number % 3):
            assert tally.enter("executions", name, 3)
    assert [tally.count("executions", name) for name in names] == [1 + n % 3 for n in range(1000)]
    for number, name in enumerate(names):
        for _ in range(1 + number % 3):
            tally.leave("executions", name)
    assert not any(tally.count("executions", name) for name in names)


def test_tenants_that_come_and_go_use_up_no_places(tally: Tally) -> None:
    for number in range(20_000):
        with tally.counted("executions", f"tenant-{number}", 1) as inside:
            assert inside, number


def test_more_tenants_than_places_leave_nothing_counted_when_all_have_gone(tally: Tally) -> None:
    """And each is counted by itself meanwhile."""
    names = [f"tenant-{number}" for number in range(6000)]
    assert all(tally.enter("streams", name, 1) for name in names)
    assert not any(tally.enter("streams", name, 1) for name in names)
    for name in names:
        tally.leave("streams", name)
    assert [name for name in names if tally.count("streams", name)] == []


def test_all_workers_count_together(worker: Callable[[], Worker]) -> None:
    one, other = worker(), worker()
    assert one.enter(most=3) and other.enter(most=3) and one.enter(most=3)
    assert not other.enter(most=3) and not one.enter(most=3)
    assert (one.count(), other.count()) == (3, 3)
    one.ask("leave", "executions", "a")
    assert other.enter(most=3)


def test_a_killed_workers_counts_vanish_when_another_starts(worker: Callable[[], Worker]) -> None:
    one, other = worker(), worker()
    for _ in range(5):
        one.enter()
    other.enter()
    one.kill()
    replacement = worker()
    assert (replacement.count(), other.count()) == (1, 1)
    assert replacement.enter(most=2) and not other.enter(most=2)


def test_a_worker_that_starts_leaves_the_living_ones_counts_alone(worker: Callable[[], Worker]) -> None:
    one = worker()
    one.enter()
    others = [worker() for _ in range(3)]
    assert [other.count() for other in others] == [1, 1, 1]
    assert others[0].enter() and one.count() == 2


def test_there_is_room_for_a_reload_and_a_worker_beyond_it_counts_its_own(
    worker: Callable[[], Worker],
) -> None:
    """It harms nobody: the others' counts stay as they are, and whoever starts next finds its place."""
    workers = [worker() for _ in range(2 * WORKERS + 2)]
    assert all(one.enter() for one in workers)
    beyond = worker()
    assert beyond.enter(most=7) and not beyond.enter(most=7)
    assert (beyond.count(), workers[0].count()) == (7, 6)
    beyond.ask("leave", "executions", "a")
    assert beyond.count() == 6
    workers[3].kill()
    assert worker().count() == 5


def test_a_limit_holds_however_many_processes_enter_at_once(tmp_path: Path) -> None:
    go, inside, highest = SPAWN.Event(), SPAWN.Value("i", 0), SPAWN.Value("i", 0)
    crowd = [
        SPAWN.Process(target=_crowd, args=(tmp_path / "tally", 2, go, inside, highest)) for _ in range(4)
    ]
    for process in crowd:
        process.start()
    go.set()
    for process in crowd:
        process.join(60)
        assert process.exitcode == 0
        process.close()
    assert 1 <= highest.value <= 2
    assert Tally(tmp_path / "tally", WORKERS).count("executions", "a") == 0


def test_a_full_disk_is_told_and_ends_no_worker(tmp_path: Path) -> None:
    """A page of a mapped file for which there is no room would be the end of the process that touches it."""
    script = (
        "import sys; from pathlib import Path; from server.errors import StoreUnavailable\n"
        "from server.tally import Tally\n"
        "tally = Tally(Path(sys.argv[1]), 2)\n"
        "try: [tally.enter('executions', str(name), 1) for name in range(1000)]\n"
        "except StoreUnavailable: print('told')\n"
    )
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(tmp_path)], check=True, timeout=30)
    try:
        command = [sys.executable, "-c", script, str(tmp_path / "tally")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "told\n"), done.stderr
