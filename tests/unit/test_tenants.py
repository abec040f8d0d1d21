"""Tenants: made, suspended, resumed and deleted, with what becomes of all they have."""

from __future__ import annotations

import json
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from server.errors import Invalid
from server.keeper_client import KeeperClient
from server.keys import Keys, new_key
from server.store import Session, Store
from server.tenant_errors import TenantExists, TenantNotFound
from server.tenant_rows import TenantRows
from server.tenants import Tenants
from server.upload_rows import Upload, UploadRows
from server.volume_rows import Snapshot, VolumeRows


@dataclass
class Office:
    store: Store
    tenants: Tenants
    keys: Keys

    def session(self, tenant: str, workspace: str | None = None) -> Session:
        """A running one, of which no keeper knows."""
        draft = Session(
            id=secrets.token_hex(16),
            tenant=tenant,
            user_id=None,
            state="opening",
            image="default",
            memory=1 << 20,
            cpus=0.5,
            lease=60,
            metadata={},
            created_at=1000,
            last_used_at=1000,
            busy_until=0,
            must_end_at=10_000,
            volume=secrets.token_hex(16),
            workspace=workspace,
            disk=1 << 20,
        )
        session, _ = self.store.reserve(draft, lambda connection, wanted: None)
        self.store.attach(session.id, secrets.token_hex(8), "unix:/nowhere", 1000)
        return session


@pytest.fixture
def office(store: Store, tmp_path: Path) -> Office:
    clock = lambda: 1000.0  # noqa: E731 - a clock that stands still
    return Office(store, Tenants(store, KeeperClient(tmp_path / "no-keeper"), clock), Keys(store, clock))


def test_the_tenant_that_keys_are_made_for_unasked_cannot_be_deleted(office: Office) -> None:
    office.store.add_tenant("default", 1000)
    with pytest.raises(Invalid, match="Suspend"):
        office.tenants.delete("default")
    assert office.tenants.get("default").id == "default"


def test_of_quotas_that_are_changed_at_the_same_time_none_is_lost(office: Office) -> None:
    office.tenants.create("acme")
    names = ("sessions", "streams", "executions", "memory")
    for number in range(1, 11):
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(lambda name, to=number: office.tenants.change_limits("acme", {name: to}), names))
        assert json.loads(office.tenants.get("acme").limits) == dict.fromkeys(names, number)


@pytest.mark.parametrize("name", ["", ".", "-a", "a b", "a/b", "é", "a" * 65, "a\n", "../a", "*"])
def test_a_name_that_is_none_is_refused(office: Office, name: str) -> None:
    with pytest.raises(Invalid):
        office.tenants.create(name)


def test_a_name_is_given_once_even_when_its_tenant_is_gone(office: Office) -> None:
    office.tenants.create("acme")
    with pytest.raises(TenantExists):
        office.tenants.create("acme")
    office.tenants.delete("acme")
    with pytest.raises(TenantExists):
        office.tenants.create("acme")


def test_tenants_are_listed_by_name_page_by_page(office: Office) -> None:
    for name in ("d", "c"):
        office.tenants.create(name)
    first, following = office.tenants.list("", 3)
    rest, end = office.tenants.list(following or "", 3)
    assert [one.id for one in first + rest] == ["a", "b", "c", "d"] and end is None


def test_a_suspended_tenants_keys_are_known_and_open_nothing_until_it_is_resumed(office: Office) -> None:
    text = new_key(office.store, "a", "", 1000)
    assert office.tenants.suspend("a").state == "suspended"
    key = office.keys.of(text)
    assert key is not None and key.suspended and office.keys.is_over(key.id)
    assert office.tenants.resume("a").state == "active"
    key = office.keys.of(text)
    assert key is not None and not key.suspended and not office.keys.is_over(key.id)


def test_a_deleted_tenant_has_nothing_any_more_and_others_have_what_they_had(office: Office) -> None:
    """Keys, sessions, workspaces, snapshots and uploads: no row owns what the keeper's sweeps then remove."""
    texts = {tenant: new_key(office.store, tenant, "", 1000) for tenant in ("a", "b")}
    volumes, uploads = VolumeRows(office.store), UploadRows(office.store)
    sessions = {tenant: office.session(tenant, "work") for tenant in ("a", "b")}
    for tenant, session in sessions.items():
        volumes.begin_snapshot(
            Snapshot(secrets.token_hex(16), tenant, session.id, None, "snapshot", None, "ready", 1, 1000), 10
        )
        uploads.reserve(f"call-{tenant}", tenant, 1, 1000, 2000, 100)
        uploads.announce(f"call-{tenant}", f"file-{tenant}", tenant, 1000)
        file = Upload(f"file-{tenant}", tenant, "n", "m", 1, "s", 1000, 9000)
        uploads.keep(f"call-{tenant}", tenant, [file], None, "", 1000)
    office.tenants.delete("a")
    assert office.keys.of(texts["a"]) is None and office.keys.of(texts["b"]) is not None
    ended = office.store.session(sessions["a"].id)
    assert ended is not None and ended.state == "ended"
    noted = office.store.quickly("SELECT session, event, cause FROM session_events")
    assert [tuple(one) for one in noted] == [(sessions["a"].id, "close", "tenant_deleted")], "for the audit"
    assert [one.id for one in office.store.running()] == [sessions["b"].id]
    assert (volumes.workspaces("a", "", 100), volumes.snapshots("a")) == ([], [])
    assert sessions["a"].volume not in volumes.owned() and sessions["b"].volume in volumes.owned()
    uploads.drop_stale(1000)
    assert set(uploads.all()) == {"file-b"}
    with pytest.raises(TenantNotFound):
        office.tenants.get("a")


def test_what_a_late_request_begins_for_a_deleted_tenant_is_swept(office: Office) -> None:
    office.tenants.delete("a")
    late = office.session("a", "work")
    TenantRows(office.store).clear_deleted(1001)
    ended = office.store.session(late.id)
    assert ended is not None and ended.state == "ended"
    assert late.volume not in VolumeRows(office.store).owned()


@pytest.mark.parametrize("act", ["get", "suspend", "resume", "delete", "usage"])
def test_a_tenant_that_is_not_there_is_not_found(office: Office, act: str) -> None:
    with pytest.raises(TenantNotFound):
        getattr(office.tenants, act)("nobody")


def test_usage_tells_what_a_tenant_has(office: Office) -> None:
    new_key(office.store, "a", "", 1000)
    office.session("a", "work")
    office.session("a")
    told = office.tenants.usage("a")
    assert (told["sessions"], told["memory"], told["cpus"], told["disk"]) == (2, 2 << 20, 1.0, 2 << 20)
    assert (told["workspaces"], told["keys"], told["uploads"]) == (1, 1, 0)
    assert set(office.tenants.usage("b").values()) == {0}


def test_a_revocation_holds_at_once_in_a_process_that_has_seen_the_key(
    office: Office, tmp_path: Path
) -> None:
    """Another connection, as another worker has one, and what it has read before."""
    text = new_key(office.store, "a", "", time.time())
    worker = Store(tmp_path / "store.db")
    keys = Keys(worker, time.time)
    for _ in range(3):
        assert keys.of(text) is not None
    office.keys.revoke(text[4:20])
    assert keys.of(text) is None and keys.is_over(text[4:20])
    worker.close()
