"""Waiting in line: round robin between tenants, in order within one, nobody left behind."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from test_store import draft

from server import config as configuration
from server.errors import HostFull
from server.keeper.line import HungUp, Line, StillFull
from server.keeper.waiting import Waiting
from server.quota_rows import QuotaRows
from server.store import Store

SECONDS = 30.0


@dataclass
class Crowd:
    """People in a line for places, each in a thread; who got one, in order."""

    line: Line
    places: int = 0
    tries: int = 0
    served: list[str] = field(default_factory=list)
    outcome: dict[str, str] = field(default_factory=dict)
    threads: list[threading.Thread] = field(default_factory=list)
    peers: dict[str, socket.socket] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def join(self, name: str, seconds: float = SECONDS) -> None:
        """Back when it has had the turn that a newcomer gets, or has been sent away."""
        before = self.tries + len(self.outcome)
        self.peers[name], mine = socket.socketpair()
        thread = threading.Thread(target=self._stand, args=(name, mine, seconds), daemon=True)
        thread.start()
        self.threads.append(thread)
        until(lambda: self.tries + len(self.outcome) > before)

    def _stand(self, name: str, mine: socket.socket, seconds: float) -> None:
        with mine:
            try:
                self.line.wait(name[0], lambda: self._take(name), mine, seconds)
                self.outcome[name] = "served"
            except (StillFull, HungUp) as exc:
                self.outcome[name] = type(exc).__name__

    def _take(self, name: str) -> None:
        with self.lock:
            self.tries += 1
            if not self.places:
                raise StillFull
            self.places -= 1
            self.served.append(name)

    def free(self, number: int) -> None:
        with self.lock:
            self.places += number
            wanted = len(self.served) + self.places
        self.line.ring()
        until(lambda: len(self.served) >= wanted or not len(self.line))
        self._settle()

    def _settle(self) -> None:
        """Whoever still has a turn of before has tried: what becomes free next is not for that one."""
        tried = -1
        while tried != self.tries:
            tried = self.tries
            time.sleep(0.05)

    def end(self) -> None:
        for thread in self.threads:
            thread.join(SECONDS)
        for peer in self.peers.values():
            peer.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.002)


def test_tenants_take_turns_and_each_keeps_its_order() -> None:
    crowd = Crowd(Line(100))
    for name in ("a1", "a2", "a3", "b1", "c1", "a4", "b2"):
        crowd.join(name)
    for _ in range(7):
        crowd.free(1)
    crowd.end()
    assert crowd.served == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_many_places_at_once_are_all_given_away() -> None:
    crowd = Crowd(Line(100))
    for number in range(9):
        crowd.join("abc"[number % 3] + str(number))
    crowd.free(9)
    crowd.end()
    assert len(crowd.served) == 9 and len(crowd.line) == 0


def test_a_place_that_became_free_on_the_way_into_the_line_is_taken() -> None:
    crowd = Crowd(Line(100), places=1)
    crowd.join("a1")
    crowd.end()
    assert crowd.served == ["a1"]


def test_who_has_waited_long_enough_or_hangs_up_is_out_of_the_line() -> None:
    crowd = Crowd(Line(100))
    crowd.join("a1", 0.2)
    crowd.join("a2")
    crowd.join("a3")
    crowd.peers["a2"].close()
    until(lambda: len(crowd.line) == 1)
    crowd.free(1)
    crowd.end()
    assert crowd.outcome == {"a1": "StillFull", "a2": "HungUp", "a3": "served"}


def test_a_full_line_sends_away_the_last_of_who_has_most_rather_than_a_newcomer() -> None:
    crowd = Crowd(Line(3))
    for name in ("a1", "a2", "a3", "b1", "a4"):
        crowd.join(name)
    until(lambda: len(crowd.outcome) == 2)
    assert crowd.outcome == {"a3": "StillFull", "a4": "StillFull"}
    for _ in range(3):
        crowd.free(1)
    crowd.end()
    assert crowd.served == ["a1", "b1", "a2"]


def test_a_place_is_reserved_for_the_first_in_line_and_given_back_if_it_has_gone(
    store: Store, tmp_path: Path
) -> None:
    settings = {"SANDBOX_STATE_DIR": str(tmp_path), "SANDBOX_SESSIONS_MAX": "1"}
    quotas, line = QuotaRows(configuration.load(settings), store), Line(10)
    quotas.describe_host(1 << 40, 4)
    waiting = Waiting(store, quotas, line, time.time)
    first, _ = store.reserve(draft(), quotas.admit)
    theirs, mine = socket.socketpair()
    placed: list[object] = []
    wanted = draft()
    thread = threading.Thread(target=lambda: placed.append(waiting.place(wanted, mine, SECONDS)))
    thread.start()
    until(lambda: len(line) == 1)
    store.release(first.id)
    line.ring()
    thread.join(SECONDS)
    assert placed == [(wanted.id, True)]
    found = store.session(wanted.id)
    assert found is not None and found.state == "opening" and found.created_at > 1e9
    with theirs, mine:
        pass


@pytest.fixture
def quotas(store: Store, tmp_path: Path) -> QuotaRows:
    """For a host that has room for two sessions."""
    quotas = QuotaRows(configuration.load({"SANDBOX_STATE_DIR": str(tmp_path)}), store)
    quotas.describe_host(1 << 30, 4)
    return quotas


def may_open(store: Store, quotas: QuotaRows, now: float) -> bool:
    """Whether somebody who does not wait gets in; it does not stay."""
    try:
        session, _ = store.reserve(draft(tenant="b", memory=256 << 20, created_at=now), quotas.admit)
    except HostFull:
        return False
    store.release(session.id)
    return True


def test_while_others_wait_for_memory_nobody_walks_past_them(store: Store, quotas: QuotaRows) -> None:
    quotas.stand_in_line("x", 1010.0)
    assert not may_open(store, quotas, 1000.0)
    assert store.reserve(draft(), quotas.admit_from_line)[1]
    quotas.leave_line("x")
    assert may_open(store, quotas, 1000.0)


@contextmanager
def somebody_waiting(store: Store, waiting: Waiting) -> Iterator[None]:
    """For more than the host has left, until the end of the block."""
    theirs, mine = socket.socketpair()
    thread = threading.Thread(target=waiting.place, args=(draft(memory=1 << 30), mine, SECONDS))
    with mine:
        with theirs:
            thread.start()
            until(lambda: store.quickly("SELECT 1 FROM waiting").fetchone() is not None)
            yield
        thread.join(SECONDS)


def test_who_waits_holds_others_back_for_half_of_the_time_at_most(store: Store, quotas: QuotaRows) -> None:
    """Whoever asks for nearly all of the host would otherwise close it to everybody as long as it likes."""
    store.reserve(draft(), quotas.admit)
    now = 1000.0
    waiting = Waiting(store, quotas, Line(10), lambda: now)
    held = []
    for _ in range(40):  # one after the other, each of them new
        with somebody_waiting(store, waiting):
            held.append(not may_open(store, quotas, now))
        now += 1
    assert held[:20] == [True] * 10 + [False] * 10
    assert 9 <= sum(held[20:]) <= 10


def test_a_clock_that_was_set_back_holds_nobody(store: Store, quotas: QuotaRows) -> None:
    quotas.stand_in_line("x", 1010.0)
    assert may_open(store, quotas, 500.0)
