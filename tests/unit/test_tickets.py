"""A ticket opens one thing, for a while, for whom it was made; everything else about it is refused alike."""

from __future__ import annotations

import base64
import json
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from server.instance import Instance
from server.key_rows import KeyRows
from server.keys import new_key
from server.stale_rows import drop_stale
from server.store import Store
from server.tickets import SECONDS, Tickets, file_binding

SECRET = bytes(range(32))


@dataclass
class Desk:
    """Where tickets are made and taken, with a clock that is set by hand."""

    store: Store
    tickets: Tickets
    key: str
    now: list[float]

    def issue(self, purpose: str = "events", session: str = "s", execution: str = "x") -> str:
        bound = "" if purpose == "terminal" else execution
        return self.tickets.issue(purpose, self.key, session, bound, SECONDS.get(purpose, 60))[0]

    def opens(self, ticket: str, purpose: str = "events", session: str = "s", execution: str = "x") -> bool:
        wanted = "" if purpose == "terminal" else execution
        return self.tickets.redeem(ticket, purpose, session, wanted) is not None


def id_of(key: str) -> str:
    return key.removeprefix("e2b_")[:16]


@pytest.fixture
def desk(store: Store) -> Desk:
    now = [1000.0]
    tickets = Tickets(Instance("one", SECRET), store, lambda: now[0])
    return Desk(store, tickets, id_of(new_key(store, "a", "test", 0)), now)


def test_a_ticket_for_a_file_is_spent_when_its_transfer_begins(desk: Desk) -> None:
    """Looking does not use it up; it opens that file alone, by that method alone."""
    bound = file_binding(b"a\xff", "0600")
    ticket = desk.issue("upload", execution=bound)
    assert desk.opens(ticket, "upload", execution=bound) and desk.opens(ticket, "upload", execution=bound)
    for other in (file_binding(b"a", "0600"), file_binding(b"a\xff", None), file_binding(b"a\xff", "0777")):
        assert not desk.opens(ticket, "upload", execution=other)
    assert not desk.opens(ticket, "download", execution=bound)
    assert desk.tickets.spend(ticket) and not desk.tickets.spend(ticket)
    assert not desk.opens(ticket, "upload", execution=bound)


def test_a_ticket_stands_for_the_key_it_was_made_with(desk: Desk) -> None:
    key = desk.tickets.redeem(desk.issue(), "events", "s", "x")
    assert key is not None and (key.id, key.tenant) == (desk.key, "a")


def test_events_are_opened_any_number_of_times_and_a_terminal_once(desk: Desk) -> None:
    events, terminal = desk.issue(), desk.issue("terminal")
    assert [desk.opens(events) for _ in range(3)] == [True, True, True]
    assert [desk.opens(terminal, "terminal") for _ in range(3)] == [True, False, False]


def test_a_terminals_ticket_opens_once_when_twenty_come_at_once(desk: Desk) -> None:
    ticket, barrier, results = desk.issue("terminal"), threading.Barrier(20), []

    def come() -> None:
        barrier.wait(10)
        results.append(desk.opens(ticket, "terminal"))

    threads = [threading.Thread(target=come) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(results) == [False] * 19 + [True]


@pytest.mark.parametrize("purpose", sorted(SECONDS))
def test_a_ticket_is_good_until_its_time_is_up(desk: Desk, purpose: str) -> None:
    text, until = desk.tickets.issue(purpose, desk.key, "s", "")
    assert until == 1000.0 + SECONDS[purpose]
    desk.now[0] = until
    assert desk.tickets.redeem(text, purpose, "s", "") is None
    desk.now[0] = until - 0.001
    assert desk.tickets.redeem(text, purpose, "s", "") is not None


def test_a_used_ticket_stays_used_until_it_would_have_expired(desk: Desk) -> None:
    ticket = desk.issue("terminal")
    assert desk.opens(ticket, "terminal")
    drop_stale(desk.store, desk.now[0] + 59, desk.now[0])
    assert not desk.opens(ticket, "terminal")


@pytest.mark.parametrize(
    "wanted",
    [
        {"purpose": "terminal"},
        {"session": "t"},
        {"execution": "y"},
        {"execution": ""},
        {"session": "sx", "execution": ""},
    ],
)
def test_a_ticket_opens_nothing_else(desk: Desk, wanted: dict[str, Any]) -> None:
    assert not desk.opens(desk.issue(), **wanted)


def test_a_refused_use_does_not_use_a_terminals_ticket_up(desk: Desk) -> None:
    ticket = desk.issue("terminal")
    assert not desk.opens(ticket, "terminal", session="t")
    assert desk.opens(ticket, "terminal")


def test_a_ticket_dies_with_its_key(desk: Desk) -> None:
    ticket = desk.issue()
    KeyRows(desk.store).revoke(desk.key, 1000.0)
    assert not desk.opens(ticket)


def test_a_ticket_of_a_key_that_never_was_opens_nothing(desk: Desk) -> None:
    assert not desk.opens(desk.tickets.issue("events", "f" * 16, "s", "x")[0])


def test_a_ticket_of_another_installation_opens_nothing(desk: Desk) -> None:
    other = Tickets(Instance("two", bytes(32)), desk.store, lambda: 1000.0)
    assert not desk.opens(other.issue("events", desk.key, "s", "x")[0])


def test_no_bit_of_a_ticket_can_be_changed(desk: Desk) -> None:
    ticket = desk.issue()
    for at in range(len(ticket)):
        assert not desk.opens(ticket[:at] + ("A" if ticket[at] != "A" else "B") + ticket[at + 1 :]), at
    assert desk.opens(ticket)


@pytest.mark.parametrize(
    "nonsense", ["", ".", "..", "a", "a.b", "é.é", "\udc80.\udc80", "x" * 100_000, "." * 2000, "\0.\0"]
)
def test_nonsense_opens_nothing(desk: Desk, nonsense: str) -> None:
    assert not desk.opens(nonsense)


def test_a_ticket_for_the_longest_names_is_whole(desk: Desk) -> None:
    ticket = desk.issue(session="s" * 32, execution="x" * 100)
    assert desk.opens(ticket, session="s" * 32, execution="x" * 100)
    assert ticket.isascii() and not set(ticket) & set(" &?#/+=%")


def test_a_ticket_says_nothing_that_is_secret(desk: Desk) -> None:
    body = desk.issue().partition(".")[0]
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    assert set(claims) == {"id", "purpose", "key", "session", "execution", "until"}
    assert claims["key"] == desk.key
