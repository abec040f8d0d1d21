"""Keys: seen once, stored as a salted hash, good for a while, and one answer for every way of being wrong."""

from __future__ import annotations

import hashlib
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from server.errors import Invalid
from server.key_rows import KeyRows
from server.keys import Keys, new_key
from server.records import TENANT_SCOPES
from server.store import Store
from server.tenant_errors import KeyNotFound, TenantNotFound, TooManyKeys


@dataclass
class Desk:
    """Where keys are made and checked, with a clock that is set by hand."""

    store: Store
    keys: Keys
    now: list[float]

    def make(self, **wish: object) -> tuple[str, str]:
        key, text = self.keys.create("a", "name", **wish)  # type: ignore[arg-type]
        return key.id, text

    def opens(self, text: str) -> bool:
        return self.keys.of(text) is not None


@pytest.fixture
def desk(store: Store) -> Desk:
    now = [1000.0]
    return Desk(store, Keys(store, lambda: now[0]), now)


@pytest.fixture
def key(store: Store) -> str:
    return new_key(store, "tenant", "name", 1)


def test_a_key_opens_its_tenant(desk: Desk, key: str) -> None:
    assert re.fullmatch("e2b_[0-9a-f]{80}", key)
    found = desk.keys.of(key)
    assert found is not None and found.tenant == "tenant"


def test_two_keys_differ(store: Store, key: str) -> None:
    assert new_key(store, "tenant", "name", 1)[4:20] != key[4:20]


def test_the_secret_is_stored_nowhere_and_neither_is_its_plain_hash(
    store: Store, key: str, tmp_path: Path
) -> None:
    store.close()
    plain = hashlib.sha256(key[20:].encode()).hexdigest()
    for path in tmp_path.iterdir():
        assert key[20:].encode() not in path.read_bytes()
        assert plain.encode() not in path.read_bytes()


def test_a_wrong_key_opens_nothing(desk: Desk, key: str) -> None:
    flipped = key[:-1] + ("0" if key[-1] != "0" else "1")
    wrong = [
        "",
        "e2b_",
        flipped,
        key[:-1],
        key + "0",
        f" {key}",
        f"{key} ",
        f"{key}\n",
        key.upper(),
        "e2b_" + "0" * 80,
        key[4:],
        "é",
    ]
    assert [one for one in wrong if desk.opens(one)] == []


def test_a_revoked_key_opens_nothing(desk: Desk, key: str) -> None:
    desk.keys.revoke(key[4:20])
    assert not desk.opens(key) and desk.keys.is_over(key[4:20])
    with pytest.raises(KeyNotFound):
        desk.keys.revoke(key[4:20])


def test_a_key_opens_nothing_from_the_moment_on_at_which_it_expires(desk: Desk) -> None:
    key_id, text = desk.make(expires_in=60.0)
    desk.now[0] = 1059.9
    assert desk.opens(text) and not desk.keys.is_over(key_id)
    desk.now[0] = 1060.0
    assert not desk.opens(text) and desk.keys.is_over(key_id)


def test_a_rotated_key_is_worthless_at_once_and_its_successor_is_alike(desk: Desk) -> None:
    old_id, old = desk.make(scopes=["files"], expires_in=600.0)
    made, new = desk.keys.rotate(old_id, 0.0)
    assert not desk.opens(old) and desk.opens(new) and new[20:] != old[20:]
    assert (made.tenant, made.name, made.scopes, made.expires_at) == ("a", "name", {"files"}, 1600.0)
    assert desk.keys.get(old_id).replaced_by == made.id


def test_a_rotated_key_works_for_its_grace_and_is_rotated_once(desk: Desk) -> None:
    old_id, old = desk.make()
    _, new = desk.keys.rotate(old_id, 30.0)
    with pytest.raises(KeyNotFound):
        desk.keys.rotate(old_id, 30.0)
    desk.now[0] = 1029.0
    assert desk.opens(old) and desk.opens(new)
    desk.now[0] = 1030.0
    assert not desk.opens(old) and desk.opens(new)


def test_a_grace_does_not_make_a_key_live_longer(desk: Desk) -> None:
    old_id, old = desk.make(expires_in=10.0)
    desk.keys.rotate(old_id, 3600.0)
    desk.now[0] = 1010.0
    assert not desk.opens(old)


def test_a_key_has_the_scopes_it_was_given_and_by_default_all_but_admin(desk: Desk) -> None:
    assert desk.keys.get(desk.make()[0]).scopes == TENANT_SCOPES
    assert desk.keys.get(desk.make(scopes=["execute", "admin"])[0]).scopes == {"execute", "admin"}
    with pytest.raises(Invalid):
        desk.make(scopes=["sudo"])


def test_the_operators_key_administers_and_does_nothing_else(desk: Desk) -> None:
    key, text = desk.keys.create("", "operator")
    assert (key.tenant, key.scopes) == ("", {"admin"}) and desk.opens(text)
    with pytest.raises(Invalid):
        desk.keys.create("", "operator", ["admin", "execute"])


def test_there_is_no_key_for_a_tenant_that_is_not_there(desk: Desk) -> None:
    with pytest.raises(TenantNotFound):
        desk.keys.create("nobody", "")


def test_keys_of_another_tenant_are_not_found(desk: Desk, key: str) -> None:
    for act in (lambda: desk.keys.revoke(key[4:20], "a"), lambda: desk.keys.rotate(key[4:20], 0, "a")):
        with pytest.raises(KeyNotFound):
            act()
    assert desk.opens(key)


def test_keys_are_listed_page_by_page_oldest_first(desk: Desk) -> None:
    made = []
    for at in range(5):
        desk.now[0] = 1000.0 + at
        made.append(desk.make()[0])
    desk.keys.create("b", "")
    seen, after, pages = [], "", 0
    while after is not None:
        page, after = desk.keys.list("a", after, 2)  # type: ignore[assignment]
        seen += [one.id for one in page]
        pages += 1
    assert (seen, pages) == (made, 3)
    assert len(desk.keys.list(None, "", 100)[0]) == 6


def test_a_tenant_cannot_have_keys_without_end(desk: Desk) -> None:
    """Those that ended count until they are forgotten: making and revoking does not go on for ever either."""
    with desk.store.writing() as connection:
        sql = (
            "INSERT INTO keys (id, tenant, name, hash, created_at, revoked_at) VALUES (?, 'a', '', '', 1, 1)"
        )
        connection.executemany(sql, [(str(number),) for number in range(1000)])
    with pytest.raises(TooManyKeys):
        desk.make()
    KeyRows(desk.store).drop_stale(2)
    assert desk.opens(desk.make()[1])


OLD = """
CREATE TABLE tenants (id TEXT PRIMARY KEY, created_at REAL NOT NULL) STRICT;
CREATE TABLE keys (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL REFERENCES tenants (id), name TEXT NOT NULL,
    hash TEXT NOT NULL, created_at REAL NOT NULL, revoked_at REAL
) STRICT;
"""


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Store]:
    """A database from before keys had salts and scopes."""
    with closing(sqlite3.connect(tmp_path / "old.db")) as connection:
        connection.executescript(OLD)
        connection.execute("INSERT INTO tenants VALUES ('acme', 1)")
        plain = hashlib.sha256(("a" * 64).encode()).hexdigest()
        connection.execute("INSERT INTO keys VALUES (?, 'acme', 'old', ?, 1, NULL)", ("1" * 16, plain))
        connection.commit()
    store = Store(tmp_path / "old.db")
    yield store
    store.close()


def test_a_key_of_an_older_database_goes_on_working_with_all_scopes_of_a_tenant(old: Store) -> None:
    key = Keys(old, time.time).of("e2b_" + "1" * 16 + "a" * 64)
    assert key is not None and (key.tenant, key.scopes) == ("acme", TENANT_SCOPES)


def test_a_key_of_an_older_database_can_be_rotated_and_revoked(old: Store) -> None:
    keys = Keys(old, time.time)
    made, text = keys.rotate("1" * 16, 0)
    assert keys.of("e2b_" + "1" * 16 + "a" * 64) is None
    assert keys.of(text) is not None and made.salt
    keys.revoke(made.id)
    assert keys.of(text) is None


def test_checking_a_key_costs_far_less_than_a_millisecond(desk: Desk, key: str) -> None:
    """CPU time, best of several rounds: a slow hash would fail this by a factor of a hundred."""
    costs = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(200):
            assert desk.opens(key)
        costs.append((time.process_time() - began) / 200)
    assert min(costs) < 0.001
