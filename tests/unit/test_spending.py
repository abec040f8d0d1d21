"""A session for one command, asked for by several at once: one prepares it, and nobody ends what may run."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from web_in_process import Web

from server import errors
from server.api.wiring import Parts
from server.ephemeral_rows import end_unused
from server.guest_client import Command
from server.names import Idempotency, name_for
from server.records import WAITING
from server.runs import Run
from server.sessions import Opened
from server.spending import Spending
from server.store import Session, Store

KEY = Idempotency("key", "fingerprint")


@pytest.fixture
def parts(web: Web) -> Parts:
    found: Parts = web.http.application.extensions["sandbox"]
    return found


@pytest.fixture
def spending(parts: Parts) -> Spending:
    return parts.spending


def waiting(store: Store) -> Session:
    """One that was opened for a command with a key. Nobody answers at its address."""
    now = time.time()
    draft = Session(
        id=secrets.token_hex(16),
        tenant="default",
        user_id=None,
        state="opening",
        image="default",
        memory=1 << 26,
        cpus=0.1,
        lease=60.0,
        metadata={},
        created_at=now,
        last_used_at=now,
        busy_until=0.0,
        must_end_at=now + 9000,
        idempotency_key=KEY.key,
        fingerprint=KEY.fingerprint,
        ephemeral=WAITING,
    )
    store.reserve(draft, lambda connection, wanted: None)
    assert store.attach(draft.id, secrets.token_hex(16), "unix:/nowhere", now)
    return store.session(draft.id) or draft


def nothing() -> None:
    pass


def state(store: Store, session: Session) -> tuple[str, str | None]:
    now = store.session(session.id)
    assert now is not None
    return now.state, now.idempotency_key


def test_who_comes_second_waits_for_the_first_to_prepare_it_and_does_not_prepare_it_again(
    web: Web, spending: Spending
) -> None:
    session, begun, go, done = waiting(web.store), threading.Event(), threading.Event(), []

    def prepare() -> None:
        begun.set()
        assert go.wait(10)
        done.append("prepared")

    def spend(prepare: Callable[[], None]) -> None:
        done.append(str(spending.spend_once(session, prepare)))

    first = threading.Thread(target=spend, args=(prepare,))
    first.start()
    assert begun.wait(10)
    second = threading.Thread(target=spend, args=(lambda: done.append("prepared again"),))
    second.start()
    second.join(0.2)
    assert second.is_alive(), "it may not run before it is prepared"
    go.set()
    for thread in (first, second):
        thread.join(10)
    assert sorted(done) == ["False", "True", "prepared"]


def test_what_could_not_be_prepared_is_not_spent(web: Web, spending: Spending) -> None:
    session = waiting(web.store)

    def fail() -> None:
        raise errors.Invalid("files", "gone")

    with pytest.raises(errors.Invalid):
        spending.spend_once(session, fail)
    assert spending.spend_once(session, nothing) is True


def test_what_may_run_cannot_be_given_up(web: Web, spending: Spending) -> None:
    session = waiting(web.store)
    assert spending.spend_once(session, nothing)
    spending.give_up(session)
    assert state(web.store, session) == ("running", KEY.key)


def test_what_was_given_up_cannot_be_spent_and_leaves_its_key_free(web: Web, spending: Spending) -> None:
    session = waiting(web.store)
    spending.give_up(session)
    assert state(web.store, session) == ("ended", None)
    with pytest.raises(errors.SessionEnded):
        spending.spend_once(session, nothing)
    assert waiting(web.store).idempotency_key == KEY.key


def test_the_key_of_one_that_expired_before_it_was_spent_is_free(web: Web, spending: Spending) -> None:
    unspent = waiting(web.store)
    web.store.end(unspent.id, "expired", time.time())
    spending.free_unspent("default", KEY)
    spent = waiting(web.store)
    assert spending.spend_once(spent, nothing)
    web.store.end(spent.id, "expired", time.time())
    spending.free_unspent("default", KEY)
    assert state(web.store, spent) == ("ended", KEY.key), "it may have run"


def test_one_that_was_used_a_moment_ago_is_not_ended_for_want_of_a_caller(
    web: Web, spending: Spending
) -> None:
    session = waiting(web.store)
    web.store.use(session.id, session.last_used_at + 16, 0.0)
    assert not end_unused(web.store, session, ran=True, now=time.time())
    assert end_unused(web.store, web.store.session(session.id) or session, ran=True, now=time.time())
    assert state(web.store, session) == ("ended", KEY.key)


def test_the_key_of_one_in_which_nothing_ran_is_free(web: Web) -> None:
    session = waiting(web.store)
    assert end_unused(web.store, session, ran=False, now=time.time())
    assert state(web.store, session) == ("ended", None)


@pytest.mark.parametrize("mine", [True, False])
@pytest.mark.parametrize(
    "failure", [errors.StoreUnavailable("?"), errors.TooManyExecutions(1, "tenant"), KeyboardInterrupt()]
)
def test_what_failed_before_the_guest_was_asked_is_given_up_by_who_opened_it(
    web: Web, parts: Parts, mine: bool, failure: BaseException
) -> None:
    session = waiting(web.store)
    one = _run(session, mine)
    parts.runs.failed(one, failure)
    assert state(web.store, session) == (("ended", None) if mine else ("running", KEY.key))


@pytest.mark.parametrize("failure", [errors.GuestUnavailable("?"), KeyboardInterrupt()])
def test_what_failed_once_the_guest_was_asked_is_left_for_who_asks_again(
    web: Web, parts: Parts, failure: BaseException
) -> None:
    session = waiting(web.store)
    parts.spending.spend(session)
    one = replace(_run(session, mine=True), asked=True)
    parts.runs.failed(one, failure)
    assert state(web.store, session) == ("running", KEY.key)


def test_who_is_refused_while_another_call_runs_it_ends_nothing(web: Web, parts: Parts) -> None:
    session = waiting(web.store)
    parts.spending.spend(session)
    parts.runs.failed(_run(session, mine=True), errors.TooManyExecutions(1, "tenant"))
    assert state(web.store, session) == ("running", KEY.key)


def _run(session: Session, mine: bool) -> Run:
    name = name_for(session.id, None, "", KEY)
    return Run(Opened(session, True, mine), nothing, Command("true", 10), name, KEY)
