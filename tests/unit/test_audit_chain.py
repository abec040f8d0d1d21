"""A chain of records: whatever is done to the file behind the server's back is found."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from server.audit import retention
from server.audit.chain import Act, hash_of
from server.audit.journal import WINDOW, Journal
from server.audit.ledger import Ledger, LedgerFailed
from server.audit.outbox import carry_over
from server.audit.proof import Finding, examine
from server.audit.search import Page, Query, page, pages
from server.audit.witness import Witness
from server.errors import StoreUnavailable
from server.store import Session, Store

HOSTILE = 'a\n{"level":"audit"}\r\x00\x1b[2J\x7f\x85\x9b\u2028\u202e\ud800"\\'


def act(action: str = "execution.run", at: float = 1e9, **fields: Any) -> Act:
    return Act(at, action, fields.pop("outcome", "done"), fields.pop("actor", "key:1"), **fields)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "audit.db", b"secret")
    ledger.append("acme", [act(session=f"{number}") for number in range(1, 8)])
    ledger.append("other", [act()])
    yield ledger
    ledger.close()


def tamper(ledger: Ledger, *statements: str) -> None:
    """As somebody who may write the file, and has all of SQL."""
    with contextlib.closing(sqlite3.connect(ledger.path)) as connection, connection:
        connection.execute("DROP TRIGGER IF EXISTS what_is_written_stays")
        for statement in statements:
            connection.execute(statement)


def faults(ledger: Ledger, **options: Any) -> dict[str, list[str]]:
    return {one.chain: one.faults for one in examine(ledger, **options) if not one.is_whole}


def records(ledger: Ledger, chain: str = "acme", **wanted: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in page(ledger, chain, Query(**wanted), None, 1000).lines]


def test_a_chain_that_nobody_touched_is_whole(ledger: Ledger) -> None:
    found = {one.chain: one for one in examine(ledger)}
    assert (found["acme"].records, found["acme"].seq, found["acme"].is_whole) == (7, 7, True)
    assert (found["other"].records, found["other"].is_whole) == (1, True)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE records SET line = replace(line, '\"done\"', '\"none\"') WHERE chain = 'acme' AND seq = 3",
        "UPDATE records SET line = replace(line, '\"done\"', '\"none\"') WHERE chain = 'acme' AND seq = 7",
        "UPDATE records SET line = 'nonsense' WHERE chain = 'acme' AND seq = 1",
        "DELETE FROM records WHERE chain = 'acme' AND seq = 3",
        "DELETE FROM records WHERE chain = 'acme' AND seq = 1",
        "DELETE FROM records WHERE chain = 'acme' AND seq >= 6",
        "DELETE FROM records WHERE chain = 'acme'",
        "UPDATE records SET seq = seq + 100 WHERE chain = 'acme' AND seq > 3",
        "INSERT INTO records SELECT 'acme', 8, line FROM records WHERE chain = 'acme' AND seq = 7",
        "INSERT INTO records SELECT 'acme', 0, line FROM records WHERE chain = 'acme' AND seq = 1",
        "UPDATE heads SET seq = 5 WHERE chain = 'acme'",
        "UPDATE heads SET base_seq = 2 WHERE chain = 'acme'",
        "UPDATE heads SET mac = 'another' WHERE chain = 'acme'",
        "DELETE FROM heads WHERE chain = 'acme'",
    ],
)
def test_what_is_altered_removed_or_put_in_is_found(ledger: Ledger, statement: str) -> None:
    tamper(ledger, statement)
    found = faults(ledger)
    assert found.pop("acme")
    assert "other" not in found


def test_two_records_that_changed_places_are_found(ledger: Ledger) -> None:
    tamper(
        ledger,
        "UPDATE records SET seq = 1000 WHERE chain = 'acme' AND seq = 3",
        "UPDATE records SET seq = 3 WHERE chain = 'acme' AND seq = 4",
        "UPDATE records SET seq = 4 WHERE chain = 'acme' AND seq = 1000",
    )
    assert set(faults(ledger)) == {"acme"}


def test_a_record_of_another_chain_is_found(ledger: Ledger) -> None:
    tamper(
        ledger,
        """UPDATE records SET line = (SELECT line FROM records WHERE chain = 'other')
           WHERE chain = 'acme' AND seq = 1""",
    )
    assert set(faults(ledger)) == {"acme"}


def test_a_chain_written_anew_with_all_its_hashes_is_found(ledger: Ledger) -> None:
    """Who can write the file can compute hashes, but not the head's MAC."""
    forged = Ledger(ledger.path.with_name("forged.db"), b"guessed")
    forged.append("acme", [act("nothing.happened") for _ in range(7)])
    forged.append("other", [act()])
    forged.close()
    with contextlib.closing(sqlite3.connect(ledger.path)) as connection, connection:
        connection.execute("DROP TRIGGER what_is_written_stays")
        connection.execute(f"ATTACH '{forged.path}' AS forged")
        for table in ("records", "heads"):
            connection.execute(f"DELETE FROM main.{table}")
            connection.execute(f"INSERT INTO main.{table} SELECT * FROM forged.{table}")
    assert set(faults(ledger)) == {"acme", "other"}


def test_an_end_cut_off_together_with_a_matching_head_is_found(ledger: Ledger) -> None:
    last = records(ledger)[4]["hash"]
    tamper(
        ledger,
        "DELETE FROM records WHERE chain = 'acme' AND seq > 5",
        f"UPDATE heads SET seq = 5, hash = '{last}' WHERE chain = 'acme'",
    )
    assert faults(ledger) == {"acme": ["its head was not written by this installation"]}


def test_a_chain_removed_with_its_head_is_missed(ledger: Ledger) -> None:
    tamper(ledger, "DELETE FROM records WHERE chain = 'acme'", "DELETE FROM heads WHERE chain = 'acme'")
    assert faults(ledger) == {"": ["there were 2 chains, and there are 1"]}
    tamper(ledger, "UPDATE roster SET chains = 1")
    assert faults(ledger) == {"": ["the number of chains was not written by this installation"]}


REMOVED = ("DELETE FROM records WHERE chain = 'acme'", "DELETE FROM heads WHERE chain = 'acme'")


@pytest.mark.parametrize("begun", [["acme"], ["new"], ["acme", "new", "newer"]])
def test_a_chain_that_was_removed_stays_missed_whichever_is_begun_later(
    ledger: Ledger, begun: list[str]
) -> None:
    tamper(ledger, *REMOVED)
    for chain in begun:
        ledger.append(chain, [act()])
    told = f"there were {2 + len(begun)} chains, and there are {1 + len(begun)}"
    assert faults(ledger) == {"": [told]}


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("DELETE FROM roster", "the number of chains is gone"),
        ("UPDATE roster SET chains = 1", "the number of chains was not written by this installation"),
    ],
)
def test_a_number_of_chains_that_was_touched_is_never_signed_again(
    ledger: Ledger, statement: str, told: str
) -> None:
    tamper(ledger, *REMOVED, statement)
    ledger.append("new", [act()])
    assert faults(ledger) == {"": [told]}


def test_an_older_copy_of_the_whole_file_is_found_by_a_head_noted_elsewhere(ledger: Ledger) -> None:
    before = ledger.path.with_name("before.db")
    with contextlib.closing(sqlite3.connect(ledger.path)) as connection:
        connection.execute(f"VACUUM INTO '{before}'")
    ledger.append("acme", [act()])
    head = next(one for one in examine(ledger) if one.chain == "acme")
    noted = {"acme": (head.seq, head.hash)}
    assert faults(ledger, noted=noted) == {}
    older = Ledger(before, b"secret")
    assert faults(older) == {}
    assert faults(older, noted=noted) == {"acme": ["record 8 was noted and is not there"]}
    assert faults(older, noted={"gone": (1, "")}) == {"gone": ["the whole chain is gone"]}
    older.close()


def test_an_older_copy_of_the_whole_file_is_missed_by_the_witness_however_it_grows(
    ledger: Ledger, tmp_path: Path
) -> None:
    before = tmp_path / "before.db"
    with contextlib.closing(sqlite3.connect(ledger.path)) as connection:
        connection.execute(f"VACUUM INTO '{before}'")
    ledger.append("acme", [act()])
    Witness(tmp_path, ledger).keep()
    assert Witness(tmp_path, ledger).faults() == []
    older = Ledger(before, b"secret")
    witness = Witness(tmp_path, older)
    assert witness.faults() == ["acme: the witness saw 8 records, and there are 7"]
    older.append("acme", [act("another"), act("another")])
    for _ in range(2):
        witness.keep()
        assert witness.faults() == ["acme: record 8 is not the one that the witness saw"]
    older.close()


def test_a_witness_lags_and_does_not_mind_what_was_pruned(ledger: Ledger, tmp_path: Path) -> None:
    witness = Witness(tmp_path, ledger)
    assert (witness.faults(), witness.seen()) == ([], None)
    witness.keep()
    ledger.append("acme", [act(at=2e9), act(at=2e9)])
    retention.prune(ledger, retention.Kept(age=1e8, size=1 << 30), 2e9)
    assert witness.faults() == []
    witness.keep()
    assert (witness.seen() or {})["acme"][0] == 10


def test_a_witness_that_somebody_else_wrote_is_found_and_stays(ledger: Ledger, tmp_path: Path) -> None:
    witness = Witness(tmp_path, ledger)
    (tmp_path / "audit-witness").write_text("0\n{}")
    witness.keep()
    assert witness.faults() == ["the witness was not written by this installation"]


def test_records_cannot_be_changed_by_mistake(ledger: Ledger) -> None:
    raw = contextlib.closing(sqlite3.connect(ledger.path))
    with raw as connection, pytest.raises(sqlite3.IntegrityError):
        connection.execute("UPDATE records SET line = ''")


def test_whatever_was_said_is_one_line_of_printable_ascii(ledger: Ledger) -> None:
    hostile = act(action=HOSTILE, session=HOSTILE, user=HOSTILE, address=HOSTILE, details={"path": HOSTILE})
    ledger.append("acme", [hostile])
    (line,) = page(ledger, "acme", Query(session=HOSTILE), None, 10).lines
    assert all(" " <= char <= "~" for char in line)
    assert json.loads(line)["details"]["path"] == json.loads(line)["user"] == HOSTILE


def test_a_long_text_is_cut(ledger: Ledger) -> None:
    ledger.append("acme", [act(details={"command": "x" * 1_000_000})])
    assert records(ledger)[-1]["details"]["command"] == "x" * 4096


def test_an_export_can_be_checked_without_the_server(ledger: Ledger) -> None:
    prev = "0" * 64
    for line in page(ledger, "acme", Query(), None, 100).lines:
        record = json.loads(line)
        assert record["prev"] == prev
        prev = hash_of(line.rpartition(',"hash":')[0] + "}")
        assert record["hash"] == prev


def test_what_a_client_said_does_not_pass_for_a_field(ledger: Ledger) -> None:
    ledger.append("acme", [act(session="mine", details={"path": '","session":"1","user":"ada'})])
    assert [one["seq"] for one in records(ledger, session="1")] == [1]
    assert records(ledger, user="ada") == []


def test_records_are_found_by_each_of_their_facts(ledger: Ledger) -> None:
    ledger.append(
        "acme", [act("file.write", at=2e9, session="s", user="ada", outcome="refused", actor="key:2")]
    )
    wanted: list[dict[str, Any]] = [
        {"action": "file.write"},
        {"session": "s"},
        {"user": "ada"},
        {"outcome": "refused"},
        {"actor": "key:2"},
        {"since": "2033-05-18T03:33:20.000Z"},
    ]
    for query in wanted:
        assert [one["seq"] for one in records(ledger, **query)] == [8], query
    assert len(records(ledger, until="2033-05-18T03:33:20.000Z")) == 7


@pytest.mark.parametrize("newest_first", [False, True])
def test_pages_give_every_record_once_in_order(ledger: Ledger, newest_first: bool) -> None:
    ledger.append("acme", [act("odd" if number % 2 else "even") for number in range(12_000)])
    found: list[Page] = list(
        pages(ledger, "acme", Query(action="odd", newest_first=newest_first), None, 700, lambda: None)
    )
    seqs = [json.loads(line)["seq"] for one in found for line in one.lines]
    assert len(seqs) == 6000
    assert seqs == sorted(set(seqs), reverse=newest_first)
    assert all(len(one.lines) <= 700 for one in found)


def test_a_search_that_finds_nothing_comes_to_its_end(ledger: Ledger) -> None:
    ledger.append("acme", [act() for _ in range(12_000)])
    found = list(pages(ledger, "acme", Query(action="none"), None, 100, lambda: None))
    assert [one.lines for one in found] == [[], [], []]


def test_retention_by_age_leaves_a_chain_that_is_whole_and_says_so(ledger: Ledger) -> None:
    ledger.append("acme", [act(at=2e9)])
    assert retention.prune(ledger, retention.Kept(age=1e8, size=1 << 30), 2e9) == 7
    found = {one.chain: one for one in examine(ledger)}
    assert (found["acme"].pruned, found["acme"].records, found["acme"].faults) == (7, 2, [])
    (told,) = records(ledger, action="audit.pruned")
    assert (told["details"]["records"], told["actor"]) == (7, "server")
    assert retention.prune(ledger, retention.Kept(age=1e8, size=1 << 30), 2e9) == 0


def test_the_last_record_is_kept_however_old(ledger: Ledger) -> None:
    retention.prune(ledger, retention.Kept(age=1, size=1 << 30), 2e9)
    assert faults(ledger) == {}
    assert [one["action"] for one in records(ledger)] == ["execution.run", "audit.pruned"]


def test_retention_by_size_keeps_the_newest(ledger: Ledger) -> None:
    ledger.append("acme", [act() for _ in range(5000)])
    removed = retention.prune(ledger, retention.Kept(age=1e12, size=500_000), 2e9)
    found = {one.chain: one for one in examine(ledger)}
    assert found["acme"].faults == []
    assert found["acme"].pruned == removed > 0
    kept = pages(ledger, "acme", Query(), None, 1000, lambda: None)
    assert 300_000 < sum(len(line) for one in kept for line in one.lines) < 700_000
    assert found["other"].pruned == 0


def test_a_pruned_beginning_that_was_cut_further_is_found(ledger: Ledger) -> None:
    ledger.append("acme", [act(at=2e9), act(at=2e9), act(at=2e9)])
    retention.prune(ledger, retention.Kept(age=1e8, size=1 << 30), 2e9)
    tamper(ledger, "DELETE FROM records WHERE chain = 'acme' AND seq = 8")
    assert faults(ledger)["acme"]


def test_many_writers_at_once_make_one_chain(tmp_path: Path) -> None:
    """Each with a connection of its own, as the workers have."""
    ledgers = [Ledger(tmp_path / "audit.db", b"secret") for _ in range(8)]
    journals = [Journal(ledger, lambda: 0.0) for ledger in ledgers]

    def write(journal: Journal) -> None:
        for _ in range(100):
            journal.record("acme", act())

    threads = [threading.Thread(target=write, args=(journal,)) for journal in journals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for journal in journals:
        journal.check()  # what another was in the way of
    found: list[Finding] = examine(ledgers[0])
    assert [(one.records, one.faults) for one in found] == [(800, [])]
    for ledger in ledgers:
        ledger.close()


@pytest.fixture
def clock() -> Callable[[], float]:
    moments = [1e9]

    def now() -> float:
        return moments[0]

    now.moments = moments  # type: ignore[attr-defined]
    return now


def test_a_flood_of_refusals_is_summed_up(ledger: Ledger, clock: Any) -> None:
    journal = Journal(ledger, clock)
    for number in range(100_000):
        flood = act(at=clock(), outcome="refused", code="unauthorized", address=f"10.0.0.{number % 200}")
        journal.record("@anonymous", flood)
    assert len(records(ledger, "@anonymous")) == 300
    clock.moments[0] += WINDOW
    journal.settle()
    summed = records(ledger, "@anonymous", action="refusals.summed")[0]["details"]
    assert (summed["count"], summed["codes"]) == (99_700, {"unauthorized": 99_700})
    assert 0 < len(summed["addresses"]) <= 8
    journal.record("@anonymous", act(at=clock(), outcome="refused"))
    assert len(records(ledger, "@anonymous")) == 302


def test_what_is_done_is_never_summed_up(ledger: Ledger, clock: Any) -> None:
    journal = Journal(ledger, clock)
    for _ in range(4000):
        journal.record("busy", act(at=clock()))
    assert [one.records for one in examine(ledger) if one.chain == "busy"] == [4000]


def test_nothing_more_is_done_while_it_cannot_be_recorded_and_nothing_is_lost(tmp_path: Path) -> None:
    place = tmp_path / "full"
    ledger = Ledger(place / "audit.db", b"secret")  # no such directory: as good as a disk that is gone
    journal = Journal(ledger, lambda: 0.0)
    journal.check()
    journal.record("acme", act())
    with pytest.raises(StoreUnavailable):
        journal.check()
    place.mkdir()
    journal.check()
    journal.record("acme", act())
    assert [one["details"] for one in records(ledger)] == [{"late": True}, {}]
    assert faults(ledger) == {}
    ledger.close()


def session(number: int) -> Session:
    moment = float(number)
    return Session(
        id=f"{number:032x}",
        tenant="a",
        user_id=f"user {number}",
        state="opening",
        image="default",
        memory=1,
        cpus=1,
        lease=10,
        metadata={},
        created_at=moment,
        last_used_at=moment,
        busy_until=0,
        must_end_at=1000,
    )


def test_a_session_that_ends_unasked_is_recorded_whoever_ended_it(store: Store, ledger: Ledger) -> None:
    """The store notes it in the transaction that ends it. What is closed has a request that says who did."""
    for number in (1, 2, 3):
        store.reserve(session(number), lambda connection, wanted: None)
        store.attach(session(number).id, "sandbox", "unix:", 0.0)
    store.end_if_due(session(1).id, 100.0)
    store.end(session(2).id, "oom", 101.0)
    store.end(session(3).id, "closed", 102.0)
    assert carry_over(store, ledger) == 2
    assert carry_over(store, ledger) == 0
    told = [(one["action"], one["user"], one["details"], one["actor"]) for one in records(ledger, "a")]
    assert told == [
        ("session.expired", "user 1", {"cause": "expired"}, "server"),
        ("session.died", "user 2", {"cause": "oom"}, "server"),
    ]


def test_what_ended_while_the_audit_could_not_be_written_is_recorded_later(
    store: Store, tmp_path: Path
) -> None:
    store.reserve(session(1), lambda connection, wanted: None)
    store.end(session(1).id, "lost", 100.0)
    unwritable = Ledger(tmp_path / "gone" / "audit.db", b"secret")
    with pytest.raises(LedgerFailed):
        carry_over(store, unwritable)
    (tmp_path / "gone").mkdir()
    assert carry_over(store, unwritable) == 1
    unwritable.close()
