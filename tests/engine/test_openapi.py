"""The description served is valid, complete, and true of what the server answers."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import jsonschema
import requests
from openapi_spec_validator import validate
from plain import Session
from stack import Stack

from server import config as configuration
from server import instance as installation
from server.app import build

_NOT_DESCRIBED = {"/docs.css"}  # part of the page


@cache
def document(url: str) -> dict[str, Any]:
    answer = requests.get(f"{url}/openapi.json", timeout=10)
    assert answer.status_code == 200
    return dict(answer.json())


def conforms(stack: Stack, name: str, instance: object) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": document(stack.url)["components"]}
    jsonschema.validate(instance, schema, cls=jsonschema.Draft202012Validator)


def test_the_document_is_valid_openapi_3_1(stack: Stack) -> None:
    assert document(stack.url)["openapi"].startswith("3.1")
    validate(document(stack.url))


def test_every_route_is_described(stack: Stack) -> None:
    config = configuration.load({"SANDBOX_STATE_DIR": str(stack.dir / "described")})
    installation.prepare(config)
    described = document(stack.url)["paths"]
    for rule in build(config).url_map.iter_rules():
        path = re.sub(r"<(?:path:)?([^>]*)>", r"{\1}", rule.rule)
        methods = {method.lower() for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}}
        assert path in _NOT_DESCRIBED or methods <= set(described[path]), path


def test_a_real_result_is_as_described(stack: Stack, session: Session) -> None:
    for command, fields in (("echo x", {}), (r"printf '\377'", {}), ("1/0", {"language": "python"})):
        conforms(stack, "Result", session.execute(command, **fields).json())


def test_the_description_of_a_result_names_every_field(stack: Stack, session: Session) -> None:
    properties = document(stack.url)["components"]["schemas"]["Result"]["properties"]
    assert set(session.execute(r"printf '\377'").json()) <= set(properties)


def test_a_real_session_and_list_are_as_described(stack: Stack, session: Session) -> None:
    conforms(stack, "SessionAnswer", session.told)
    conforms(stack, "SessionAnswer", session.get().json())
    conforms(stack, "SessionList", stack.call("GET", "/v1/sessions").json())


def test_a_real_problem_is_as_described(stack: Stack) -> None:
    conforms(stack, "Problem", stack.call("GET", "/v1/sessions/none").json())


def test_unknown_fields_are_described_as_forbidden(stack: Stack) -> None:
    schemas = document(stack.url)["components"]["schemas"]
    for name in ("CreateSession", "Execute", "RunCommand", "Cleanup", "Extend"):
        assert schemas[name]["additionalProperties"] is False


def test_the_page_needs_nothing_from_elsewhere_and_runs_no_script(stack: Stack) -> None:
    answer = requests.get(f"{stack.url}/docs", timeout=10)
    assert (answer.status_code, answer.headers["Content-Type"].split(";")[0]) == (200, "text/html")
    assert re.findall(r"(?:https?:)?//[^\s\"'<]+", answer.text) == []
    assert "<script" not in answer.text and " on" + "click" not in answer.text and "style=" not in answer.text
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert requests.get(f"{stack.url}/docs.css", timeout=10).headers["Content-Type"].startswith("text/css")


def test_the_page_shows_every_path_and_code(stack: Stack) -> None:
    page = requests.get(f"{stack.url}/docs", timeout=10).text
    for path in document(stack.url)["paths"]:
        assert path in page
    for code in ("session_ended", "too_many_sessions", "keeper_unavailable", "idempotency_conflict"):
        assert code in page
