"""Quotas by name: defaults, a tenant's own, what sessions hold, and what the host can bear."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_admin import Caller
from test_ctl import Ctl
from test_store import draft
from web_in_process import Web

from server import config as configuration
from server.config import BadConfig, Config
from server.errors import HostFull, Invalid, QuotaExceeded, TooManySessions
from server.keeper.host import memory_for_sessions, memory_of_machine
from server.keys import Keys
from server.limit_settings import quotas_from
from server.quota_rows import QuotaRows
from server.quotas import as_text, quotas_of
from server.stale_rows import drop_stale
from server.store import Store
from server.volume_rows import _WORKSPACE, VolumeRows
from server.workspace_errors import WorkspaceNotFound

MIB = 1 << 20


def test_a_tenants_own_quotas_stand_before_the_defaults(config: Config) -> None:
    own = as_text({"sessions": 3, "memory": "2g", "streams": None, "user.memory": "512m"})
    found = quotas_of(replace(config, user_limits={"memory": MIB, "cpus": 2.0}), own)
    assert (found.tenant["sessions"], found.tenant["memory"], found.tenant["streams"]) == (3, 2 << 30, None)
    assert found.tenant["executions"] == config.tenant_executions_max
    assert (found.user["memory"], found.user["cpus"], found.user["bytes"]) == (512 * MIB, 2.0, None)


@pytest.mark.parametrize(
    "bad",
    [
        {"sesions": 3},
        {"sessions": 0},
        {"sessions": "many"},
        {"memory": -1},
        {"memory": True},
        {"cpus": []},
        {"user.sessions": 2},
        {"user.workspaces": 2},
        {"sessions": 1.5},
        {"exec_seconds": "NaN"},
    ],
)
def test_what_is_no_quota_is_refused_by_name(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        quotas_from(bad)


def test_user_limits_are_read_from_the_settings_and_checked() -> None:
    state = {"SANDBOX_STATE_DIR": "/nowhere"}
    loaded = configuration.load({**state, "SANDBOX_USER_LIMITS": "memory=2g, executions=8,bytes=none"})
    assert loaded.user_limits == {"memory": 2 << 30, "executions": 8, "bytes": None}
    for bad in ("memory", "memory=much", "sessions=2", "nonsense=1"):
        with pytest.raises(BadConfig, match="SANDBOX_USER_LIMITS"):
            configuration.load({**state, "SANDBOX_USER_LIMITS": bad})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PROXIES", "everybody"),
        ("RATELIMIT_STORAGE", "memcached://x"),
        ("MEMORY_OVERCOMMIT", "0"),
        ("QUEUE_MAX", "-1"),
        ("TENANT_MEMORY", "lots"),
    ],
)
def test_settings_that_make_no_sense_stop_the_start(name: str, value: str) -> None:
    with pytest.raises(BadConfig, match=name):
        configuration.load({"SANDBOX_STATE_DIR": "/nowhere", f"SANDBOX_{name}": value})


def test_what_can_never_fit_is_said_before_what_may_change(store: Store, config: Config) -> None:
    """Nobody is told to wait, or to close something, for the sake of what the tenant may never have."""
    quotas = QuotaRows(replace(config, tenant_memory=1 << 30, sessions_max=1), store)
    store.reserve(draft(), quotas.admit)
    with pytest.raises(QuotaExceeded) as refused:
        store.reserve(replace(draft(), memory=2 << 30), quotas.admit)
    assert (refused.value.extras["limit"], refused.value.retryable) == ("memory", False)


def test_a_session_without_a_sandbox_holds_no_memory(store: Store, config: Config) -> None:
    quotas = QuotaRows(replace(config, tenant_memory=1 << 30), store)
    first, _ = store.reserve(draft(), quotas.admit)
    store.attach(first.id, "f" * 32, "unix:/nowhere", 1000.0)
    assert quotas.held("a") == {"sessions": 1, "memory": 1 << 29, "cpus": 1.0, "disk": 0, "workspaces": 0}
    store.quickly("UPDATE sessions SET sandbox = NULL WHERE id = ?", (first.id,))
    assert quotas.held("a") == {"sessions": 1, "memory": 0, "cpus": 0.0, "disk": 0, "workspaces": 0}
    assert quotas.promised() == 0
    store.reserve(draft(), quotas.admit)
    store.reserve(draft(), quotas.admit)
    with pytest.raises(QuotaExceeded) as refused:
        store.reserve(draft(), quotas.admit)
    told = refused.value.extras
    assert (told["limit"], told["used"], told["allowed"], told["scope"]) == (
        "memory",
        1 << 30,
        1 << 30,
        "tenant",
    )


def test_the_host_admits_what_it_has_memory_and_cpus_for(store: Store, config: Config) -> None:
    quotas = QuotaRows(config, store)
    quotas.describe_host(1 << 30, 2)
    store.reserve(draft(), quotas.admit)
    store.reserve(draft(tenant="b"), quotas.admit)
    with pytest.raises(HostFull):
        store.reserve(draft(), quotas.admit)
    with pytest.raises(Invalid, match="cpus"):
        store.reserve(draft(cpus=2.5), quotas.admit)
    with pytest.raises(Invalid, match="memory"):
        store.reserve(draft(memory=2 << 30), quotas.admit)


def test_a_tenant_keeps_so_many_workspaces_however_many_are_asked_for_at_once(
    store: Store, config: Config
) -> None:
    quotas = QuotaRows(replace(config, tenant_workspaces=3), store)

    def ask(number: int) -> bool:
        try:
            wanted = draft(workspace=f"w{number}", volume=secrets.token_hex(16))
            return store.reserve(wanted, quotas.admit)[1]
        except QuotaExceeded as exc:
            assert (exc.extras["limit"], exc.extras["used"], exc.extras["allowed"]) == ("workspaces", 3, 3)
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(16))) == 3
    assert quotas.held("a")["workspaces"] == 3
    assert store.reserve(draft(), quotas.admit)[1], "without a name there is nothing to keep"
    other = draft(tenant="b", workspace="w", volume=secrets.token_hex(16))
    assert store.reserve(other, quotas.admit)[1], "another's do not count"
    rows = VolumeRows(store)
    mine = rows.workspaces("a", "", 10)
    store.end(mine[0].session or "", "closed", 2000.0)
    again = draft(workspace=mine[0].name, volume=secrets.token_hex(16))
    assert store.reserve(again, quotas.admit)[0].volume == mine[0].volume, "one that is there may be used"


def test_workspaces_come_by_the_page_and_one_by_its_name(store: Store, config: Config) -> None:
    quotas, rows = QuotaRows(config, store), VolumeRows(store)
    names = ["a", "b.c", "user:ada/x", "z"]
    for name in names:
        store.reserve(draft(workspace=name, volume=secrets.token_hex(16)), quotas.admit)
    pages = [rows.workspaces("a", after, 2) for after in ("", "b.c", "z")]
    assert [[one.name for one in page] for page in pages] == [names[:2], names[2:], []]
    assert rows.workspace("a", "user:ada/x") == pages[1][0]
    plan = store.quickly(f"EXPLAIN QUERY PLAN {_WORKSPACE} WHERE w.tenant = ? AND w.name = ?", ("a", "z"))
    assert not [row["detail"] for row in plan if row["detail"].startswith("SCAN")]
    with pytest.raises(WorkspaceNotFound):
        rows.workspace("b", "z")


def test_tombstones_do_not_count(store: Store, config: Config) -> None:
    quotas = QuotaRows(replace(config, sessions_max=1), store)
    first, _ = store.reserve(draft(), quotas.admit)
    with pytest.raises(TooManySessions):
        store.reserve(draft(), quotas.admit)
    store.end(first.id, "closed", 2000.0)
    assert store.reserve(draft(), quotas.admit)[1]


def test_an_older_database_gets_what_quotas_need(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with contextlib.closing(sqlite3.connect(path)) as old:
        old.executescript(
            """CREATE TABLE tenants (id TEXT PRIMARY KEY, created_at REAL NOT NULL) STRICT;
               INSERT INTO tenants VALUES ('old', 1);
               CREATE TABLE detached (session TEXT NOT NULL, execution TEXT NOT NULL, tenant TEXT NOT NULL,
                   until REAL NOT NULL, PRIMARY KEY (session, execution)) STRICT, WITHOUT ROWID;
               INSERT INTO detached VALUES ('s', 'x', 'old', 99);"""
        )
    store = Store(path)
    assert store.limits("old") == "{}"
    drop_stale(store, 100, 100)
    assert store.quickly("SELECT count(*) FROM detached").fetchone()[0] == 0
    store.close()


def test_memory_is_what_the_control_groups_let_one_have(tmp_path: Path, config: Config) -> None:
    group = tmp_path / "memory" / "outer" / "inner"
    group.mkdir(parents=True)
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (group.parent / "memory.limit_in_bytes").write_text(f"{700 * MIB}\n")
    (group / "memory.limit_in_bytes").write_text(f"{900 * MIB}\n")
    mine = tmp_path / "mine"
    mine.write_text("4:memory:/outer/inner\n1:cpu:/\n0::/\n")
    assert memory_of_machine(tmp_path, mine) == 700 * MIB
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "memory.max").write_text("max\n")
    (tmp_path / "memory.max").write_text(f"{600 * MIB}\n")
    mine.write_text("0::/new\n")
    assert memory_of_machine(tmp_path, mine) == 600 * MIB
    mine.write_text("0::/elsewhere/entirely\n")
    (tmp_path / "memory.max").unlink()
    assert memory_of_machine(tmp_path, mine) > 0, "the machine's own"
    assert memory_for_sessions(config, 10 << 30) == 9 << 30
    generous = replace(config, memory_overcommit=2.0, memory_reserve=MIB)
    assert memory_for_sessions(generous, 101 * MIB) == 200 * MIB


def test_an_operator_gives_a_tenant_quotas_of_its_own_over_http(web: Web) -> None:
    operator = Caller(web, Keys(web.store, lambda: 0.0).create("", "operator")[1])
    status, made = operator("POST", "tenants", {"tenant": "acme", "limits": {"sessions": 3, "memory": "1g"}})
    assert (status, made["limits"]) == (201, {"sessions": 3, "memory": 1 << 30})
    status, changed = operator("PATCH", "tenants/acme", {"limits": {"memory": "default", "cpus": None}})
    assert (status, changed["limits"]) == (200, {"sessions": 3, "cpus": None})
    status, refused = operator("PATCH", "tenants/acme", {"limits": {"sesions": 4}})
    assert (status, refused["code"], refused["field"]) == (400, "invalid_request", "limits")
    assert operator("PATCH", "tenants/nobody", {"limits": {}})[1]["code"] == "tenant_not_found"
    key = operator("POST", "keys", {"tenant": "acme"})[1]["key"]
    told = web.http.get("/v1/limits", headers={"X-API-Key": key}).get_json()["limits"]
    assert told["sessions"] == {"used": 0, "allowed": 3}
    mine = Caller(web, operator("POST", "keys", {"tenant": "acme", "scopes": ["admin"]})[1]["key"])
    assert mine("PATCH", "tenants/acme", {"limits": {"sessions": 1000}})[0] == 403, "not one's own"


def test_an_operator_gives_a_tenant_quotas_of_its_own_by_command(config: Config) -> None:
    ctl = Ctl(config)
    made = ctl("tenant", "add", "acme", "--limit", "sessions=10", "--limit", "user.exec_seconds=3600")
    assert made["limits"] == {"sessions": 10, "user.exec_seconds": 3600.0}
    assert ctl("tenant", "set", "acme", "--limit", "sessions=default", "--limit", "memory=none")[
        "limits"
    ] == {
        "user.exec_seconds": 3600.0,
        "memory": None,
    }
    assert ctl.refuses("tenant", "set", "acme", "--limit", "sessions=lots") == "invalid_request"
    [used] = [one for one in ctl("usage")["tenants"] if one["tenant"] == "acme"]
    assert (used["exec_seconds_today"], used["bytes_received_today"], used["bytes_sent_today"]) == (0, 0, 0)
