"""Every route of the application, called with ids that are another tenant's, of what is gone, or made up.

The answer is the same word for word (A93), and nothing happens to the other tenant. A route that is added
later is walked too; one that names things in its body or query has to be entered here, or it fails.
"""

from __future__ import annotations

import json
import secrets
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from invariants import Session, Tenant
from stack import Stack
from werkzeug.routing import Rule

from server import config as configuration
from server import instance as installation
from server.api.auth import OPEN_ENDPOINTS
from server.api.scopes import ENDPOINTS
from server.app import build

Call = dict[str, Any]  # what is sent besides method, path and key

# What is needed to get past the checks of the request itself. {...} are replaced as in the path.
SENT: dict[str, Call] = {
    "executions.execute_in": {"json": {"command": "touch /workspace/intruder"}},
    "executions.start": {"json": {"command": "touch /workspace/intruder"}},
    "executions.signal": {"json": {"signal": "SIGKILL"}},
    "executions.send_input": {"json": {"data": "x"}},
    "files.make_directory": {"json": {"path": "intruder"}},
    "files.move": {"json": {"source": "kept", "destination": "intruder"}},
    "files.copy": {"json": {"source": "kept", "destination": "intruder"}},
    "files.edit": {"json": {"path": "kept", "old": "a", "new": "b"}},
    "files.create_url": {"json": {"path": "kept", "for": "download"}},
    "searching.search": {"json": {"pattern": "a"}},
    "tickets.create_ticket": {"json": {"for": "terminal"}},
    "snapshots.restore": {"json": {"snapshot_id": "{snapshot_id}"}},
    "archives.upload_archive": {"params": {"path": ".", "format": "tar"}, "data": b"\0" * 1024},
    "terminal.open_terminal": {
        "headers": {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        }
    },
}
WITH_PATH = ("files.", "contents.", "archives.", "watching.", "workspaces.")
# Routes without an id in their path that name things all the same, and the refusal.
NAMING: dict[str, list[tuple[Call, str]]] = {
    "executions.execute": [({"json": {"session_id": "{session_id}", "command": "x"}}, "session_not_found")],
    "sessions.cleanup": [({"json": {"session_id": "{session_id}"}}, "session_not_found")],
    "run.run": [
        ({"json": {"command": "x", "snapshot": "{snapshot_id}"}}, "snapshot_not_found"),
        ({"json": {"command": "x", "files": ["{file_id}"]}}, "invalid_request"),
        ({"json": {"command": "x", "datasets": ["{file_id}"]}}, "invalid_request"),
    ],
    "admin_keys.create": [({"json": {"tenant": "{tenant}"}}, "tenant_not_found")],
    "admin_keys.list_keys": [({"params": {"tenant": "{tenant}"}}, "tenant_not_found")],
    **{
        create: [
            ({"json": {"snapshot": "{snapshot_id}"}}, "snapshot_not_found"),
            ({"json": {"files": ["{file_id}"]}}, "invalid_request"),
            ({"json": {"datasets": ["{file_id}"]}}, "invalid_request"),
        ]
        for create in ("sessions.create", "sessions.create_session")
    },
}
# The same in a session of the caller's own.
IN_OWN_SESSION: dict[str, list[tuple[Call, str]]] = {
    "snapshots.restore": [({"json": {"snapshot_id": "{snapshot_id}"}}, "snapshot_not_found")],
    "snapshots.undo": [({"json": {"execution_id": "{execution_id}"}}, "nothing_to_undo")],
    "tickets.create_ticket": [
        ({"json": {"for": "events", "execution_id": "{execution_id}"}}, "execution_not_found")
    ],
}
NAME_NOTHING = {
    "admin_leaks.count_leaks",
    "sessions.list_sessions",
    "snapshots.list_all",
    "workspaces.list_workspaces",
    "workspaces.datasets",
    "uploads.upload",
    "uploads.list_uploads",
    "audit.list_audit",  # filters what is one's own
    "audit.list_any",
    "metrics.expose",
    "limits.show",
    "admin_tenants.create",
    "admin_tenants.list_tenants",
    "admin_doctor.examine",
}


@dataclass(frozen=True)
class Ids:
    """By the names that routes have for them."""

    session_id: str
    execution_id: str
    snapshot_id: str
    file_id: str
    workspace: str
    tenant: str
    key_id: str

    def values(self, rule: Rule) -> dict[str, str]:
        name = self.tenant if rule.endpoint.startswith("admin_") else self.workspace
        return {argument: vars(self).get(argument, name) for argument in rule.arguments}

    def filled(self, call: Call) -> Call:
        return {name: self._fill(value) for name, value in call.items()}

    def _fill(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._fill(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._fill(one) for one in value]
        return value.format(**vars(self)) if isinstance(value, str) else value


def made_up() -> Ids:
    long, short = secrets.token_hex(16), secrets.token_hex(8)
    return Ids(long, long, long, long, f"w{short}", f"t{short}", short)


@dataclass(frozen=True)
class Victim:
    tenant: Tenant
    session: Session
    ids: Ids
    gone: Ids


def belongings(tenant: Tenant, name: str) -> tuple[Session, Ids]:
    """One of everything that has an id."""
    session = tenant.open(workspace=f"work-{name}")
    session.run("echo a >kept")
    execution = tenant.call("POST", f"/v1/sessions/{session.id}/executions", json={"command": "true"}).json()
    snapshot = tenant.call("POST", f"/v1/sessions/{session.id}/snapshots").json()
    sent = tenant.call("POST", "/upload", files={"file": ("a.txt", b"secret")}).json()
    ids = Ids(
        session.id,
        execution["execution_id"],
        snapshot["snapshot_id"],
        sent["files"][0]["file_id"],
        f"work-{name}",
        name,
        tenant.key[4:20],
    )
    return session, ids


@pytest.fixture(scope="module")
def victim(stack: Stack) -> Iterator[Victim]:
    lost = Tenant(stack, stack.new_key("walked-and-gone"))
    _, gone = belongings(lost, "walked-and-gone")
    stack.ctl("tenant", "delete", "walked-and-gone")
    tenant = Tenant(stack, stack.new_key("walked"))
    session, ids = belongings(tenant, "walked")
    yield Victim(tenant, session, ids, gone)
    stack.ctl("tenant", "delete", "walked")


@pytest.fixture(scope="module")
def walker(stack: Stack) -> Iterator[Tenant]:
    """With every scope that a tenant's key can have."""
    scopes = [
        word
        for scope in ("sessions:read", "sessions:write", "execute", "files", "admin")
        for word in ("--scope", scope)
    ]
    made = json.loads(stack.ctl("key", "new", "--tenant", "walker", *scopes, "--json"))
    tenant = Tenant(stack, made["key"])
    yield tenant
    tenant.close_all()


@pytest.fixture(scope="module")
def routes(tmp_path_factory: pytest.TempPathFactory) -> list[Rule]:
    place = Path(tmp_path_factory.mktemp("routes"))
    config = configuration.load({"SANDBOX_STATE_DIR": str(place)})
    installation.prepare(config)
    return [rule for rule in build(config).url_map.iter_rules() if rule.endpoint not in OPEN_ENDPOINTS]


def answers(
    walker: Tenant, rule: Rule, call: Call, everyones: list[Ids], session: str = ""
) -> list[tuple[str, Any]]:
    """What each of them gives, by method; without what is different in every answer."""
    told = []
    for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
        for ids in everyones:
            values = ids.values(rule) | ({"session_id": session} if session else {})
            path = rule.rule
            for argument, value in values.items():
                path = path.replace(f"<path:{argument}>", value).replace(f"<{argument}>", value)
            answer = walker.call(method, path, **ids.filled(call))
            body = json.loads(answer.text.replace(ids.file_id, "ID") or "{}")  # some say what was sent
            told.append((method, {**body, "status": answer.status_code, "request_id": ""}))
    return told


def sent_to(rule: Rule) -> Call:
    default: Call = {"params": {"path": "kept"}} if rule.endpoint.startswith(WITH_PATH) else {}
    return SENT.get(rule.endpoint, default)


def all_alike(told: list[tuple[str, Any]], code: str | None = None, status: int | None = None) -> bool:
    by_method = {method: [body for one, body in told if one == method] for method, _ in told}
    return all(
        body == bodies[0]
        and (code is None or body["code"] == code)
        and (status is None or body["status"] == status)
        for bodies in by_method.values()
        for body in bodies
    )


def test_a93_every_route_answers_foreign_gone_and_made_up_ids_alike(
    routes: list[Rule], walker: Tenant, victim: Victim
) -> None:
    everyones, failed = [victim.ids, victim.gone, made_up()], {}
    for rule in routes:
        if not rule.arguments:
            continue
        status = 403 if ENDPOINTS[rule.endpoint] == "operator" else 404
        told = answers(walker, rule, sent_to(rule), everyones)
        if not all_alike(told, status=status):
            failed[f"{rule.endpoint} {rule.rule}"] = told
    assert failed == {}


def test_a93_ids_in_bodies_and_queries_are_answered_alike(
    routes: list[Rule], walker: Tenant, victim: Victim
) -> None:
    everyones, failed = [victim.ids, victim.gone, made_up()], {}
    for rule in routes:
        for call, code in NAMING.get(rule.endpoint, []):
            told = answers(walker, rule, call, everyones)
            if not all_alike(told, code):
                failed[f"{rule.endpoint} {call}"] = told
    assert failed == {}


def test_a93_what_is_anothers_is_not_found_in_a_session_of_ones_own_either(
    routes: list[Rule], walker: Tenant, victim: Victim
) -> None:
    session, failed = walker.open().id, {}
    everyones = [victim.ids, victim.gone, made_up()]
    for rule in routes:
        if "session_id" not in rule.arguments:
            continue
        for call, code in IN_OWN_SESSION.get(rule.endpoint, []):
            told = answers(walker, rule, call, everyones, session)
            if not all_alike(told, code):
                failed[f"{rule.endpoint} {call}"] = told
        if len(rule.arguments) > 1:
            told = answers(walker, rule, sent_to(rule), everyones, session)
            if not all_alike(told, status=404):
                failed[f"{rule.endpoint} {rule.rule}"] = told
    walker.close_all()
    assert failed == {}


def test_a_route_without_an_id_in_its_path_says_here_what_it_names(routes: list[Rule]) -> None:
    """So that nobody forgets the ids that come in a body."""
    without = {rule.endpoint for rule in routes if not rule.arguments}
    assert without == set(NAMING) | NAME_NOTHING
    assert set(IN_OWN_SESSION) | set(SENT) <= {rule.endpoint for rule in routes}


def test_a93_nothing_has_happened_to_the_other_tenant(victim: Victim) -> None:
    """After all of the above."""
    assert victim.session.run("ls -A /workspace && cat kept")["stdout"] == "kept\na\n"
    for path in (
        f"/v1/sessions/{victim.ids.session_id}",
        f"/v1/sessions/{victim.ids.session_id}/executions/{victim.ids.execution_id}",
        f"/v1/snapshots/{victim.ids.snapshot_id}",
        f"/v1/uploads/{victim.ids.file_id}",
        f"/v1/workspaces/{victim.ids.workspace}",
    ):
        assert victim.tenant.call("GET", path).status_code == 200, path


def test_a93_no_lists_show_what_is_anothers(walker: Tenant, victim: Victim) -> None:
    for path in ("sessions", "snapshots", "workspaces", "uploads", "admin/keys", "datasets"):
        told = walker.call("GET", f"/v1/{path}").text
        assert [one for one in vars(victim.ids).values() if one != "walked" and one in told] == []


def test_a93_the_time_an_answer_takes_does_not_tell_whether_an_id_is_anothers(
    walker: Tenant, victim: Victim
) -> None:
    """Medians, asked in turn, within 5 ms of each other; a busy machine may need another try."""
    differences = []
    for _ in range(5):
        took: dict[str, list[float]] = {victim.ids.session_id: [], victim.gone.session_id: [], "0" * 32: []}
        for _ in range(20):
            for session, seconds in took.items():
                began = time.perf_counter()
                assert walker.call("GET", f"/v1/sessions/{session}").status_code == 404
                seconds.append(time.perf_counter() - began)
        medians = [statistics.median(seconds) for seconds in took.values()]
        differences.append(max(medians) - min(medians))
        if differences[-1] < 0.005:
            return
    raise AssertionError(differences)
