"""/v1/admin: tenants and keys, by the operator's key, or a tenant's own admin key as far as it reaches."""

from __future__ import annotations

from typing import Any

import pytest
from web_in_process import Web

from server.keys import Keys, new_key


class Caller:
    """Who holds a key."""

    def __init__(self, web: Web, key: str) -> None:
        self._web, self._key = web, key

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self._key}"}
        answer = self._web.http.open(f"/v1/admin/{path}", method=method, headers=headers, json=body)
        told = answer.get_json() if answer.is_json else None
        return answer.status_code, told

    def works(self) -> bool:
        headers = {"Authorization": f"Bearer {self._key}"}
        return self._web.http.get("/v1/sessions", headers=headers).status_code == 200


@pytest.fixture
def operator(web: Web) -> Caller:
    return Caller(web, Keys(web.store, lambda: 0.0).create("", "operator")[1])


@pytest.fixture
def tenants_admin(web: Web) -> Caller:
    return Caller(web, new_key(web.store, "acme", "", 0, ["admin"]))


def test_a_tenant_is_made_shown_suspended_resumed_and_deleted(web: Web, operator: Caller) -> None:
    status, made = operator("POST", "tenants", {"tenant": "acme"})
    assert (status, made["tenant"], made["state"]) == (201, "acme", "active")
    assert operator("POST", "tenants", {"tenant": "acme"})[1]["code"] == "tenant_exists"
    key = Caller(web, operator("POST", "keys", {"tenant": "acme"})[1]["key"])
    assert key.works()
    assert operator("POST", "tenants/acme/suspend")[1]["state"] == "suspended"
    assert not key.works()
    assert operator("POST", "tenants/acme/resume")[1]["suspended_at"] is None
    assert key.works()
    assert operator("GET", "tenants/acme/usage")[1]["keys"] == 1
    assert operator("DELETE", "tenants/acme") == (204, None)
    assert not key.works()
    assert operator("GET", "tenants/acme")[1]["code"] == "tenant_not_found"


def test_tenants_are_paged(web: Web, operator: Caller) -> None:
    for name in ("x", "y", "z"):
        operator("POST", "tenants", {"tenant": name})
    first = operator("GET", "tenants?limit=2")[1]
    rest = operator("GET", f"tenants?limit=2&cursor={first['next_cursor']}")[1]
    assert [one["tenant"] for one in first["tenants"] + rest["tenants"]] == ["default", "x", "y", "z"]


def test_a_key_is_told_once_and_listed_without_its_secret(web: Web, operator: Caller) -> None:
    wish = {"tenant": "default", "name": "ci", "scopes": ["execute"], "expires_in": 3600}
    status, made = operator("POST", "keys", wish)
    assert status == 201 and made["key"].startswith(made["prefix"]) and made["scopes"] == ["execute"]
    listed = operator("GET", "keys?tenant=default")[1]["keys"]
    shown = next(one for one in listed if one["key_id"] == made["key_id"])
    assert shown == {name: value for name, value in made.items() if name != "key"}
    assert shown["state"] == "active" and shown["expires_at"] is not None
    assert made["key"][20:] not in str(operator("GET", "keys"))


def test_a_key_is_rotated_with_a_grace_and_revoked(web: Web, operator: Caller) -> None:
    made = operator("POST", "keys", {"tenant": "default"})[1]
    status, other = operator("POST", f"keys/{made['key_id']}/rotate", {"grace": 600})
    assert status == 201 and Caller(web, made["key"]).works() and Caller(web, other["key"]).works()
    status, third = operator("POST", f"keys/{other['key_id']}/rotate")
    assert status == 201 and not Caller(web, other["key"]).works()
    assert operator("DELETE", f"keys/{third['key_id']}") == (204, None)
    assert not Caller(web, third["key"]).works()
    assert operator("DELETE", f"keys/{third['key_id']}")[1]["code"] == "key_not_found"


def test_the_operator_makes_another_admin_key_only_when_that_is_said(web: Web, operator: Caller) -> None:
    assert operator("POST", "keys", {})[0] == 400
    assert operator("POST", "keys", {"admin": True, "tenant": "default"})[0] == 400
    assert operator("POST", "keys", {"admin": True, "scopes": ["execute"]})[0] == 400
    made = operator("POST", "keys", {"admin": True})[1]
    assert (made["tenant"], made["scopes"]) == (None, ["admin"])
    assert Caller(web, made["key"])("GET", "tenants")[0] == 200


def test_an_ordinary_key_administers_nothing(web: Web, operator: Caller) -> None:
    ordinary = Caller(web, web.key)
    for method, path in (
        ("GET", "tenants"),
        ("GET", "keys"),
        ("POST", "keys"),
        ("DELETE", "tenants/default"),
    ):
        status, body = ordinary(method, path)
        assert (status, body["code"], body["scope"]) == (403, "scope_missing", "admin")


def test_a_tenants_admin_reaches_its_own_keys_and_nothing_else(web: Web, tenants_admin: Caller) -> None:
    """What is another's is answered as what is not there."""
    foreign = new_key(web.store, "default", "", 0)
    status, made = tenants_admin("POST", "keys", {"tenant": "acme", "scopes": ["execute"]})
    assert status == 201
    assert {one["tenant"] for one in tenants_admin("GET", "keys")[1]["keys"]} == {"acme"}
    assert tenants_admin("GET", "tenants/acme")[1]["tenant"] == "acme"
    assert tenants_admin("POST", f"keys/{made['key_id']}/rotate")[0] == 201
    for real, none in (
        (("GET", "tenants/default"), ("GET", "tenants/nobody")),
        (("GET", "tenants/default/usage"), ("GET", "tenants/nobody/usage")),
        (("GET", "keys?tenant=default"), ("GET", "keys?tenant=nobody")),
        (("DELETE", f"keys/{foreign[4:20]}"), ("DELETE", f"keys/{'0' * 16}")),
        (("POST", f"keys/{foreign[4:20]}/rotate"), ("POST", f"keys/{'0' * 16}/rotate")),
        (("POST", "keys", {"tenant": "default"}), ("POST", "keys", {"tenant": "nobody"})),
    ):
        answers = [tenants_admin(*call) for call in (real, none)]
        for _, body in answers:
            body.pop("request_id")
        assert answers[0] == answers[1] and answers[0][0] == 404, real
    assert Caller(web, foreign).works()
    for method, path in (("GET", "tenants"), ("POST", "tenants"), ("DELETE", "tenants/acme")):
        assert tenants_admin(method, path)[1]["code"] == "scope_missing"
    assert tenants_admin("POST", "keys", {"admin": True})[1]["code"] == "scope_missing"


@pytest.mark.parametrize(
    "body",
    [
        {"tenant": "a b"},
        {"tenant": "default", "scopes": []},
        {"tenant": "default", "scopes": ["root"]},
        {"tenant": "default", "expires_in": 0},
        {"tenant": "default", "expires_in": 1e300},
        {"tenant": "default", "name": "a\nb"},
        {"tenant": "default", "secret": "mine"},
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(operator: Caller, body: dict[str, Any]) -> None:
    assert operator("POST", "keys", body)[1]["code"] == "invalid_request"
