"""Keys that may do less than all, as the SDK meets them, and the operator's, which may do something else."""

from __future__ import annotations

import json

import pytest
from sandbox_client import Forbidden, SandboxClient, ScopeMissing, TenantSuspended
from stack import Stack


def key_with(stack: Stack, *options: str) -> str:
    return str(json.loads(stack.ctl("key", "new", *options, "--json"))["key"])


def test_a_client_is_told_which_scope_its_key_lacks(stack: Stack) -> None:
    reading = SandboxClient(url=stack.url, api_key=key_with(stack, "--scope", "sessions:read"))
    with pytest.raises(ScopeMissing) as raised, reading:
        reading.execute("true")
    assert raised.value.scope == "sessions:write" and isinstance(raised.value, Forbidden)
    assert "sessions:write" in str(raised.value) and not raised.value.retryable


def test_a_key_for_executing_works_in_a_session_that_another_key_has_opened(
    stack: Stack, sandbox: SandboxClient
) -> None:
    sandbox.execute("echo x >kept")
    executing = key_with(stack, "--scope", "execute", "--scope", "sessions:read")
    path = f"/v1/sessions/{sandbox.session_id}"
    ran = stack.call("POST", f"{path}/execute", key=executing, json={"command": "cat kept"})
    assert ran.json()["stdout"] == "x\n"
    for method, below in (("DELETE", ""), ("GET", "/files"), ("POST", "/files/urls"), ("POST", "/fork")):
        refused = stack.call(method, path + below, key=executing)
        assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing"), below


def test_the_operators_key_cannot_run_anything_in_a_tenants_sandbox(
    stack: Stack, sandbox: SandboxClient
) -> None:
    operator = key_with(stack, "--admin")
    sandbox.execute("true")
    assert stack.call("GET", "/v1/admin/tenants", key=operator).status_code == 200
    body = {"session_id": sandbox.session_id, "command": "id"}
    refused = stack.call("POST", "/execute", key=operator, json=body).json()
    assert (refused["code"], refused["scope"]) == ("scope_missing", "execute")


def test_a_suspended_tenant_meets_an_error_of_its_own_and_its_session_waits(stack: Stack) -> None:
    with SandboxClient(url=stack.url, api_key=stack.new_key("waiting")) as sandbox:
        sandbox.execute("x=kept")
        stack.ctl("tenant", "suspend", "waiting")
        with pytest.raises(TenantSuspended):
            sandbox.execute("true")
        stack.ctl("tenant", "resume", "waiting")
        assert sandbox.execute("echo $x").output == "kept\n"
