"""Keys: seen once, stored as a hash, and one answer for every way of being wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from server.keys import key_of, new_key
from server.store import Store


@pytest.fixture
def key(store: Store) -> str:
    return new_key(store, "tenant", "name", 1)


def test_a_key_opens_its_tenant(store: Store, key: str) -> None:
    assert re.fullmatch("e2b_[0-9a-f]{80}", key)
    found = key_of(store, key)
    assert found is not None and found.tenant == "tenant"


def test_two_keys_differ(store: Store, key: str) -> None:
    assert new_key(store, "tenant", "name", 1)[4:20] != key[4:20]


def test_the_secret_is_stored_nowhere(store: Store, key: str, tmp_path: Path) -> None:
    store.close()
    for path in tmp_path.iterdir():
        assert key[20:].encode() not in path.read_bytes()


def test_a_wrong_key_opens_nothing(store: Store, key: str) -> None:
    flipped = key[:-1] + ("0" if key[-1] != "0" else "1")
    wrong = [
        "",
        "e2b_",
        flipped,
        key[:-1],
        key + "0",
        f" {key}",
        f"{key}\n",
        key.upper(),
        "e2b_" + "0" * 80,
        key[4:],
        "é",
    ]
    assert [one for one in wrong if key_of(store, one) is not None] == []


def test_a_revoked_key_opens_nothing(store: Store, key: str) -> None:
    store.revoke_key(key[4:20], 5)
    assert key_of(store, key) is None
