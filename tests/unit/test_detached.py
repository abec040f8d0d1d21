"""Executions that outlive their call, counted: once each, never beyond the limit, gone with their session."""

from __future__ import annotations

import secrets
import threading

import pytest

from server.detached import Detached, NoRoom, One
from server.stale_rows import drop_stale
from server.store import Session, Store

NOW = 1000.0


def one(execution: str = "", tenant: str = "a", session: str = "s", until: float = NOW + 100) -> One:
    return One(tenant, session, execution or secrets.token_hex(4), until)


@pytest.fixture
def detached(store: Store) -> Detached:
    return Detached(store)


def add(detached: Detached, execution: One, now: float, most: int) -> bool | None:
    """None if there is no room."""
    try:
        return detached.add(execution, now, {None: most})
    except NoRoom:
        return None


def opened(store: Store, tenant: str = "a") -> str:
    session = Session(
        id=secrets.token_hex(16),
        tenant=tenant,
        user_id=None,
        state="opening",
        image="default",
        memory=1 << 29,
        cpus=1.0,
        lease=100.0,
        metadata={},
        created_at=NOW,
        last_used_at=NOW,
        busy_until=0.0,
        must_end_at=NOW + 9000,
    )
    store.reserve(session, lambda connection, wanted: None)
    store.attach(session.id, secrets.token_hex(16), "unix:/nowhere", NOW)
    return session.id


def test_each_is_counted_once_until_it_is_removed(detached: Detached) -> None:
    assert add(detached, one("x"), NOW, 9) is True
    assert add(detached, one("x"), NOW, 9) is False
    assert detached.count("a", None, NOW) == 1
    assert detached.remove("s", "x") == NOW + 100
    assert detached.remove("s", "x") is None
    assert detached.count("a", None, NOW) == 0


def test_beyond_the_limit_none_is_added_but_a_known_one_is_still_known(detached: Detached) -> None:
    assert add(detached, one("x"), NOW, 1) is True
    assert add(detached, one("y"), NOW, 1) is None
    assert add(detached, one("x"), NOW, 1) is False
    assert add(detached, one("z"), NOW, 0) is None and add(detached, one("z"), NOW, -5) is None
    assert detached.of("a") == {"s": {"x"}}


def test_the_same_id_in_another_session_is_another(detached: Detached) -> None:
    assert add(detached, one("x", session="s"), NOW, 9) and add(detached, one("x", session="t"), NOW, 9)
    detached.remove("s", "x")
    assert detached.of("a") == {"t": {"x"}}


def test_tenants_are_counted_apart(detached: Detached) -> None:
    add(detached, one("x", tenant="a", session="s"), NOW, 1)
    assert add(detached, one("y", tenant="b", session="t"), NOW, 1) is True
    assert (detached.count("a", None, NOW), detached.count("b", None, NOW)) == (1, 1)
    assert detached.of("b") == {"t": {"y"}}


def test_what_can_no_longer_run_does_not_count(detached: Detached) -> None:
    add(detached, one("x", until=NOW + 10), NOW, 1)
    assert add(detached, one("y"), NOW + 9.9, 1) is None
    assert detached.count("a", None, NOW + 10) == 0
    assert add(detached, one("y"), NOW + 10, 1) is True


def test_a_session_that_ends_takes_its_executions_with_it(detached: Detached, store: Store) -> None:
    gone, stays = opened(store), opened(store)
    for session in (gone, stays):
        add(detached, one("x", session=session), NOW, 9)
    store.end(gone, "closed", NOW)
    assert detached.of("a") == {stays: {"x"}}


def test_a_session_that_expires_takes_its_executions_with_it(detached: Detached, store: Store) -> None:
    session = opened(store)
    add(detached, one("x", session=session), NOW, 9)
    assert store.end_if_due(session, NOW + 200)
    assert detached.of("a") == {}


def test_what_is_long_over_is_swept_away(detached: Detached, store: Store) -> None:
    add(detached, one("old", until=NOW + 1), NOW, 9)
    add(detached, one("new", until=NOW + 100), NOW, 9)
    drop_stale(store, NOW + 50, NOW)
    assert detached.of("a") == {"s": {"new"}}


def test_a_limit_holds_when_fifty_start_at_once(detached: Detached) -> None:
    barrier, results = threading.Barrier(50), []

    def start(number: int) -> None:
        barrier.wait(10)
        results.append(add(detached, one(str(number)), NOW, 7))

    threads = [threading.Thread(target=start, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (results.count(True), results.count(None)) == (7, 43)
    assert detached.count("a", None, NOW) == 7


def test_another_process_sees_the_same(detached: Detached, store: Store) -> None:
    add(detached, one("x"), NOW, 9)
    other = Store(store._path)
    assert Detached(other).of("a") == {"s": {"x"}}
    assert add(Detached(other), one("x"), NOW, 9) is False
    other.close()
