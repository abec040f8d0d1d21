"""Scopes: what a key may not do is refused by name, before anything else of the request is looked at."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from flask import Flask
from web_in_process import Web
from werkzeug.routing import Rule

from server.api.auth import OPEN_ENDPOINTS
from server.api.scopes import ENDPOINTS
from server.keys import Keys, new_key
from server.tenants import Tenants

KeyWith = Callable[..., str]


@pytest.fixture
def key_with(web: Web) -> KeyWith:
    return lambda *scopes: new_key(web.store, "default", "", 0, scopes)


@pytest.fixture
def operator(web: Web) -> str:
    return Keys(web.store, lambda: 0.0).create("", "operator")[1]


def app_of(web: Web) -> Flask:
    return web.http.application


def protected(web: Web) -> list[Rule]:
    return [rule for rule in app_of(web).url_map.iter_rules() if rule.endpoint not in OPEN_ENDPOINTS]


def call(web: Web, key: str, method: str, path: str, **options: object) -> tuple[int, dict[str, object]]:
    headers = {"Authorization": f"Bearer {key}"}
    answer = web.http.open(path, method=method, headers=headers, **options)  # type: ignore[arg-type]
    return answer.status_code, answer.get_json() if answer.is_json else {}


def test_every_endpoint_refuses_a_key_that_lacks_its_scope(web: Web, key_with: KeyWith) -> None:
    """Whatever else may be wrong with the request: its body is not even read."""
    for rule in protected(web):
        needed = ENDPOINTS[rule.endpoint]
        others = {"sessions:read", "sessions:write", "execute", "files"} - {needed}
        with app_of(web).test_request_context():
            path = rule.build({name: "x" for name in rule.arguments}, append_unknown=False)
        assert path is not None
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            status, body = call(web, key_with(*others), method, path[1])
            assert (status, body["code"]) == (403, "scope_missing"), (method, rule.rule)
            assert body["scope"] == ("admin" if needed == "operator" else needed)


def test_a_key_with_the_scope_gets_past_it(web: Web, key_with: KeyWith) -> None:
    assert call(web, key_with("sessions:read"), "GET", "/v1/sessions")[0] == 200
    assert call(web, key_with("sessions:read"), "POST", "/v1/sessions", json={})[0] == 403
    assert call(web, key_with("files"), "GET", "/v1/uploads")[0] == 200
    status, body = call(
        web, key_with("execute"), "POST", "/execute", json={"session_id": "x", "command": "x"}
    )
    assert (status, body["code"]) == (404, "session_not_found")


def test_an_endpoint_without_an_entry_is_refused_to_everybody(web: Web, operator: str) -> None:
    app_of(web).add_url_rule("/v1/new", "new", lambda: "secret")
    for key in (web.key, operator):
        status, body = call(web, key, "GET", "/v1/new")
        assert (status, body["code"]) == (403, "scope_missing")


def test_files_sent_ahead_need_the_scope_for_files_when_a_session_is_created(
    web: Web, key_with: KeyWith
) -> None:
    key = key_with("sessions:write")
    for body in ({"files": ["a" * 32]}, {"datasets": ["a" * 32]}):
        status, told = call(web, key, "POST", "/v1/sessions", json=body)
        assert (status, told["scope"]) == (403, "files")
    once = {"command": "true", "files": ["a" * 32]}
    status, told = call(web, key_with("execute"), "POST", "/run", json=once)
    assert (status, told["scope"]) == (403, "files")


def test_a_path_that_is_none_is_not_found_rather_than_forbidden(web: Web, key_with: KeyWith) -> None:
    assert call(web, key_with("files"), "GET", "/v1/nowhere")[0] == 404
    assert call(web, key_with("files"), "PATCH", "/v1/sessions")[0] == 405


def test_the_operators_key_cannot_act_as_a_tenant(web: Web, operator: str) -> None:
    for rule in protected(web):
        if ENDPOINTS[rule.endpoint] in ("admin", "operator"):
            continue
        with app_of(web).test_request_context():
            path = rule.build({name: "x" for name in rule.arguments}, append_unknown=False)
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            assert path is not None
            assert call(web, operator, method, path[1])[0] == 403, (method, rule.rule)


def test_a_suspended_tenant_is_told_so_and_nothing_else(web: Web) -> None:
    tenants = Tenants(web.store, app_of(web).extensions["sandbox"].tenants._keeper, lambda: 0.0)
    tenants.suspend("default")
    for method, path in (("GET", "/v1/sessions"), ("POST", "/execute"), ("GET", "/v1/nowhere")):
        status, body = call(web, web.key, method, path)
        assert (status, body["code"]) == (403, "tenant_suspended")
    tenants.resume("default")
    assert call(web, web.key, "GET", "/v1/sessions")[0] == 200
