"""The store keeps its promises however many ask at once: quotas, one session per user and per key."""

from __future__ import annotations

import multiprocessing
import secrets
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server import config as configuration
from server import keeper_client
from server.errors import IdempotencyConflict, TooManySessions
from server.leak_rows import _ENDED, _STALE, LeakRows
from server.quota_rows import QuotaRows
from server.stale_rows import _BURY, drop_stale
from server.store import Admit, Session, Store, cursor_of
from server.volume_rows import MAKING_SECONDS, Snapshot, VolumeRows

DRAFT = Session(
    id="",
    tenant="a",
    user_id=None,
    state="opening",
    image="default",
    memory=1 << 29,
    cpus=1.0,
    lease=100.0,
    metadata={},
    created_at=1000.0,
    last_used_at=1000.0,
    busy_until=0.0,
    must_end_at=9000.0,
)


def draft(**changes: Any) -> Session:
    return replace(DRAFT, **{"id": secrets.token_hex(16), **changes})


def up_to(most: int) -> Admit:
    """Lets in so many sessions of a tenant."""
    config = configuration.load({"SANDBOX_STATE_DIR": "/nowhere", "SANDBOX_SESSIONS_MAX": str(most)})
    return QuotaRows(config, Store(Path("/nowhere"))).admit


def running(store: Store, **changes: Any) -> Session:
    session, new = store.reserve(draft(**changes), up_to(1000))
    assert new
    assert store.attach(session.id, secrets.token_hex(16), "unix:/nowhere", session.created_at)
    return store.session(session.id) or session


def all_at_once(number: int, work: Callable[[int], object]) -> list[object]:
    barrier, results = threading.Barrier(number), []

    def one(index: int) -> None:
        barrier.wait(10)
        try:
            results.append(work(index))
        except (TooManySessions, IdempotencyConflict) as exc:
            results.append(exc)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def test_a_quota_holds_when_fifty_threads_reserve_at_once(store: Store) -> None:
    results = all_at_once(50, lambda _: store.reserve(draft(), up_to(7)))
    assert sum(isinstance(result, TooManySessions) for result in results) == 43


def _reserve_in_a_process(path: Path, most: int, go: Any, told: Any) -> None:
    store = Store(path)
    go.wait(10)
    got = 0
    for _ in range(5):
        try:
            store.reserve(draft(), up_to(most))
            got += 1
        except TooManySessions:
            pass
    store.close()
    told.put(got)


def test_a_quota_holds_across_processes(store: Store, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    go, told = context.Event(), context.Queue()
    workers = [
        context.Process(target=_reserve_in_a_process, args=(tmp_path / "store.db", 6, go, told))
        for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    go.set()
    got = sum(told.get(timeout=30) for _ in workers)
    for worker in workers:
        worker.join(10)
        worker.close()
    told.close()
    told.join_thread()
    assert got == 6


def test_a_quota_is_each_tenants_own(store: Store) -> None:
    store.reserve(draft(), up_to(1))
    assert store.reserve(draft(tenant="b"), up_to(1))[1]
    with pytest.raises(TooManySessions):
        store.reserve(draft(), up_to(1))


def test_an_ended_or_released_session_makes_room(store: Store) -> None:
    first, _ = store.reserve(draft(), up_to(1))
    store.release(first.id)
    second, new = store.reserve(draft(), up_to(1))
    assert new and store.session(first.id) is None
    store.end(second.id, "closed", 2000)
    assert store.reserve(draft(), up_to(1))[1]


def test_one_user_gets_one_live_session_when_fifty_ask_at_once(store: Store) -> None:
    results = all_at_once(50, lambda _: store.reserve(draft(user_id="u"), up_to(1000)))
    assert len({result[0].id for result in results}) == 1  # type: ignore[index]
    assert sum(result[1] for result in results) == 1  # type: ignore[index]


def test_an_existing_user_is_found_also_when_the_quota_is_full(store: Store) -> None:
    first, _ = store.reserve(draft(user_id="u"), up_to(1))
    assert store.reserve(draft(user_id="u"), up_to(1)) == (first, False)


def test_users_of_the_same_name_in_two_tenants_are_two_users(store: Store) -> None:
    first, _ = store.reserve(draft(user_id="u"), up_to(10))
    second, new = store.reserve(draft(user_id="u", tenant="b"), up_to(10))
    assert new and first.id != second.id


def test_a_user_may_have_a_new_session_after_the_old_one_ended(store: Store) -> None:
    first = running(store, user_id="u")
    store.end(first.id, "closed", 2000)
    assert store.reserve(draft(user_id="u"), up_to(10))[1]


def test_an_idempotency_key_gives_one_session_when_fifty_ask_at_once(store: Store) -> None:
    results = all_at_once(
        50, lambda _: store.reserve(draft(idempotency_key="k", fingerprint="f"), up_to(1000))
    )
    assert len({result[0].id for result in results}) == 1  # type: ignore[index]


def test_an_idempotency_key_with_another_body_is_a_conflict(store: Store) -> None:
    store.reserve(draft(idempotency_key="k", fingerprint="f"), up_to(10))
    with pytest.raises(IdempotencyConflict):
        store.reserve(draft(idempotency_key="k", fingerprint="g"), up_to(10))
    assert store.reserve(draft(idempotency_key="k", fingerprint="g", tenant="b"), up_to(10))[1]


def test_attaching_a_session_that_was_given_up_fails(store: Store) -> None:
    session, _ = store.reserve(draft(), up_to(10))
    store.release(session.id)
    assert not store.attach(session.id, "s", "unix:/x", 1)


def test_only_what_is_due_is_ended_as_expired(store: Store) -> None:
    session = running(store)
    assert not store.end_if_due(session.id, 1099)
    store.use(session.id, 1050, 0)
    assert not store.end_if_due(session.id, 1149)
    assert store.end_if_due(session.id, 1150)
    ended = store.session(session.id)
    assert ended is not None and (ended.state, ended.cause, ended.ended_at) == ("ended", "expired", 1150)
    assert not store.end_if_due(session.id, 1151)


def test_a_running_command_keeps_a_session_alive_but_not_beyond_its_hard_end(store: Store) -> None:
    session = running(store, must_end_at=2000.0)
    store.use(session.id, 1000, 5000)
    assert store.due(1999) == []
    assert [due.id for due in store.due(2000)] == [session.id]


def test_a_session_is_due_when_its_row_says_so(store: Store) -> None:
    """The same rule in SQL and in Python."""
    for changes in ({}, {"lease": 1.0}, {"must_end_at": 1500.0}, {"lease": 5000.0}, {"busy_until": 3000.0}):
        session = running(store, **changes)
        for now in (1000.5, 1100.0, 1500.0, 2999.0, 3000.0, 9000.0):
            found = store.session(session.id)
            assert found is not None
            assert found.is_due(now) == (session.id in {due.id for due in store.due(now)}), (changes, now)


def test_extending_gives_a_new_lease_from_now(store: Store) -> None:
    session = running(store)
    store.extend(session.id, 500, 1050)
    found = store.session(session.id)
    assert found is not None and found.expires_at == 1550


def test_a_session_ends_once(store: Store) -> None:
    session = running(store)
    results = all_at_once(10, lambda index: store.end(session.id, f"cause{index}", 2000))
    assert results.count(True) == 1


def test_listing_pages_through_everything_once(store: Store) -> None:
    made = [running(store, created_at=1000.0 + index // 3).id for index in range(10)]
    running(store, tenant="b")
    seen, after = [], ""
    while page := store.list_running("a", None, {}, after, 3):
        seen += [session.id for session in page]
        after = cursor_of(page[-1])
    assert sorted(seen) == sorted(made)


def test_listing_filters_by_user_and_every_label(store: Store) -> None:
    one = running(store, user_id="u", metadata={"team": "x", "it's": 'a "b"'})
    running(store, user_id="v", metadata={"team": "x"})
    assert [s.id for s in store.list_running("a", "u", {}, "", 10)] == [one.id]
    assert len(store.list_running("a", None, {"team": "x"}, "", 10)) == 2
    assert [s.id for s in store.list_running("a", None, {"team": "x", "it's": 'a "b"'}, "", 10)] == [one.id]
    assert store.list_running("a", None, {"team": "%"}, "", 10) == []


def test_stale_openings_and_old_tombstones_are_forgotten(store: Store) -> None:
    stale, _ = store.reserve(draft(), up_to(10))
    fresh, _ = store.reserve(draft(created_at=2000.0), up_to(10))
    dead = running(store)
    store.end(dead.id, "closed", 1500)
    drop_stale(store, opening_before=1500, ended_before=1600)
    assert [store.session(one.id) is not None for one in (stale, fresh, dead)] == [False, True, False]


def test_what_is_written_is_found_by_another_process_of_ours(store: Store, tmp_path: Path) -> None:
    session = running(store, metadata={"a": "é"})
    other = Store(tmp_path / "store.db")
    assert other.session(session.id) == session
    other.close()


def test_a_key_answered_with_a_session_that_stood_gives_it_again_for_a_day(store: Store) -> None:
    """Also when that has ended; another wish is a conflict, and after a day the key is anybody's."""
    standing = running(store, user_id="ada")
    asked = {"user_id": "ada", "idempotency_key": "k", "fingerprint": "f", "created_at": 2000.0}
    for _ in range(2):
        found, new = store.reserve(draft(**asked), up_to(1000))
        assert (found.id, new) == (standing.id, False)
    store.end(standing.id, "closed", 2001.0)
    found, new = store.reserve(draft(**asked), up_to(1000))
    assert (found.id, found.state, new) == (standing.id, "ended", False)
    with pytest.raises(IdempotencyConflict):
        store.reserve(draft(**{**asked, "fingerprint": "other"}), up_to(1000))
    assert store.reserve(draft(**{**asked, "tenant": "b"}), up_to(1000))[1]
    assert store.reserve(draft(**{**asked, "created_at": 2000.0 + 86401}), up_to(1000))[1]


def test_remembered_keys_are_bounded(store: Store) -> None:
    running(store, user_id="ada")
    for number in range(1100):
        asked = {"user_id": "ada", "idempotency_key": f"{number}", "fingerprint": "f"}
        store.reserve(draft(**asked, created_at=2000.0 + number), up_to(1000))
    assert store.quickly("SELECT count(*) FROM create_keys").fetchone()[0] == 1000


def test_old_tombstones_go_while_others_go_on_writing(store: Store, tmp_path: Path) -> None:
    """However many there are, nobody waits longer than for a few of them."""
    one = running(store)
    store.end(one.id, "closed", 1.0)
    copies = """WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
                INSERT INTO sessions (id, tenant, state, image, memory, cpus, lease, metadata, created_at,
                    last_used_at, busy_until, must_end_at, ended_at)
                SELECT printf('%032x', i), tenant, 'ended', image, memory, cpus, lease, metadata, created_at,
                    last_used_at, busy_until, must_end_at, CASE WHEN i % 2 THEN 1.0 ELSE 5000.0 END
                FROM sessions, n WHERE id = ?"""
    store.quickly(copies, (one.id,))
    other, over, left = Store(tmp_path / "store.db"), threading.Event(), set()

    def write() -> None:
        while not over.is_set():
            with other.writing("NORMAL") as connection:
                left.add(connection.execute("SELECT count(*) FROM sessions").fetchone()[0])

    thread = threading.Thread(target=write)
    thread.start()
    drop_stale(store, 0.0, 1000.0)
    over.set()
    thread.join(30)
    other.close()
    assert store.quickly("SELECT count(*), min(ended_at) FROM sessions").fetchone()[:] == (10000, 5000.0)
    assert len(left) > 10, "others had their turn again and again"


def test_dropping_tombstones_looks_at_no_others(store: Store) -> None:
    plan = store.quickly(f"EXPLAIN QUERY PLAN {_BURY}", {"before": 1.0, "most": 1})
    assert any("INDEX tombstones" in row["detail"] for row in plan), [row["detail"] for row in plan]
    for sql in ("SELECT 1 FROM detached WHERE " + _ENDED, _STALE):
        details = [row["detail"] for row in store.quickly(f"EXPLAIN QUERY PLAN {sql}", {"making": 1.0})]
        assert not [one for one in details if one == "SCAN sessions"], details


def test_a_snapshot_is_given_up_only_after_the_longest_copy(store: Store) -> None:
    """On storage without shared blocks it takes minutes: its row must outlive the call that takes it."""
    session, rows, leaks = running(store), VolumeRows(store), LeakRows(store)
    snapshot = Snapshot("f" * 32, "a", session.id, None, "snapshot", None, "making", None, 1000.0)
    rows.begin_snapshot(snapshot, 10)
    late = 1000.0 + keeper_client._COPY_SECONDS + 1
    rows.drop_stale(late, 0.0)
    assert leaks.stale(late) == set()
    assert rows.finish_snapshot(snapshot.id, 1)
    rows.begin_snapshot(replace(snapshot, id="e" * 32), 10)
    assert leaks.stale(1000.0 + MAKING_SECONDS + 1) == {"snapshot/" + "e" * 32}
    rows.drop_stale(1000.0 + MAKING_SECONDS + 1, 0.0)
    assert not rows.finish_snapshot("e" * 32, 1)
