"""From bytes to a checked request, through the application itself. No keeper runs: nothing can be opened."""

from __future__ import annotations

import gzip
import json
import re
import time
from typing import Any

import pytest
from expect import problem, refused
from web_in_process import Web

from server import errors
from server.api.describe import BODIES
from server.config import Config
from server.keys import Keys

ID = "f" * 32


def test_opening_without_a_keeper_is_a_503_that_can_be_retried(web: Web) -> None:
    answer = web.post("/create_session")
    assert problem(answer, 503, "keeper_unavailable")["retryable"] is True
    assert int(answer.headers["Retry-After"]) > 0


def test_a_failed_opening_leaves_no_row(web: Web) -> None:
    for _ in range(3):
        web.post("/create_session", {"user_id": "u"})
    rows = web.store.quickly("SELECT count(*) FROM sessions").fetchone()[0]
    assert rows == 0


def test_a_command_reaches_the_lookup_when_all_is_well(web: Web) -> None:
    problem(web.post("/execute", {"session_id": ID, "command": "true"}), 404, "session_not_found")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"user_id": ""}, "user_id"),
        ({"user_id": "x" * 257}, "user_id"),
        ({"user_id": "a\nb"}, "user_id"),
        ({"user_id": 7}, "user_id"),
        ({"image": "nope"}, "image"),
        ({"image": "default:latest"}, "image"),
        ({"image": "../default"}, "image"),
        ({"memory": "512m"}, "memory"),
        ({"memory": 1}, "memory"),
        ({"memory": -1}, "memory"),
        ({"memory": 1.5e9}, "memory"),
        ({"memory": True}, "memory"),
        ({"memory": (4 << 30) + 1}, "memory"),
        ({"memory": 10**29}, "memory"),
        ({"cpus": 0}, "cpus"),
        ({"cpus": -1}, "cpus"),
        ({"cpus": 4.01}, "cpus"),
        ({"cpus": "1"}, "cpus"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": 86401}, "timeout"),
        ({"timeout": 1e18}, "timeout"),
        ({"timeout": "60"}, "timeout"),
        ({"env": {"A=B": "1"}}, "env"),
        ({"env": {"": "1"}}, "env"),
        ({"env": {"1A": "1"}}, "env"),
        ({"env": {"A": "a\0b"}}, "env"),
        ({"env": {"A\n": "1"}}, "env"),
        ({"env": {"A": 1}}, "env.A"),
        ({"env": ["A=1"]}, "env"),
        ({"env": {f"A{n}": "" for n in range(10_000)}}, "env"),
        ({"env": {"A": "x" * 200_000}}, "env"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {"": "x"}}, "metadata"),
        ({"metadata": {"x" * 65: "x"}}, "metadata"),
        ({"metadata": {"a": "x" * 257}}, "metadata"),
        ({"metadata": {"a": "\x1b"}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(33)}}, "metadata"),
        ({"network": True}, "network"),
        ({"Memory": 1}, "Memory"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wish_that_cannot_be_granted_names_the_field(web: Web, fields: dict[str, Any], field: str) -> None:
    refused(web.post("/create_session", fields), field)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"command": ""}, "command"),
        ({"command": " \n\t"}, "command"),
        ({"command": None}, "command"),
        ({"command": 7}, "command"),
        ({"command": {"a": 1}}, "command"),
        ({"command": []}, "command"),
        ({"command": [""]}, "command"),
        ({"command": ["a", 7]}, "command"),
        ({"command": ["a", None]}, "command"),
        ({"command": [["a"]]}, "command"),
        ({"command": "a\0b"}, "command"),
        ({"command": ["a", "b\0"]}, "command"),
        ({"command": ["a", "x" * 3_000_000]}, "command"),
        ({"command": ["a"] * 200_000}, "command"),
        ({"command": "x" * (5 << 20)}, "command"),
        ({"command": "x" * (128 << 10), "shell": None}, "body"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": 1e9}, "timeout"),
        ({"timeout": 1e18}, "timeout"),
        ({"timeout": 3601}, "timeout"),
        ({"timeout": "abc"}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"timeout": [5]}, "timeout"),
        ({"env": {"A=B": "1"}}, "env"),
        ({"env": {"A": None}}, "env.A"),
        ({"env": {"A": "\0"}}, "env"),
        ({"env": {"BASHOPTS": "x"}}, "env"),
        ({"env": {f"A{n}": "" for n in range(10_000)}}, "env"),
        ({"cwd": ""}, "cwd"),
        ({"cwd": "/\0"}, "cwd"),
        ({"cwd": 7}, "cwd"),
        ({"cwd": "/x" * 5000}, "cwd"),
        ({"stdin": 7}, "stdin"),
        ({"stdin_base64": "not base64!"}, "stdin_base64"),
        ({"stdin_base64": "YQ"}, "stdin_base64"),
        ({"stdin_base64": "é"}, "stdin_base64"),
        ({"stdin": "a", "stdin_base64": "YQ=="}, "body"),
        ({"shell": "a b"}, "shell"),
        ({"shell": "../x"}, "shell"),
        ({"shell": ""}, "shell"),
        ({"shell": "main\n"}, "shell"),
        ({"shell": "x" * 65}, "shell"),
        ({"shell": 7}, "shell"),
        ({"language": "ruby"}, "language"),
        ({"language": None}, "language"),
        ({"language": "python", "command": ["x"]}, "body"),
        ({"session": ID}, "session"),
        ({"__proto__": {}}, "__proto__"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_command_that_cannot_be_run_names_the_field(web: Web, fields: dict[str, Any], field: str) -> None:
    refused(web.post("/execute", {"session_id": ID, "command": "true", **fields}), field)


@pytest.mark.parametrize("session_id", [None, 7, "", "x" * 300, ["a"], {"$ne": ""}])
def test_a_session_id_of_the_wrong_shape_names_the_field(web: Web, session_id: object) -> None:
    refused(web.post("/execute", {"session_id": session_id, "command": "true"}), "session_id")
    refused(web.post("/cleanup", {"session_id": session_id}), "session_id")


@pytest.mark.parametrize(
    "session_id", ["' OR 1=1 --", "../../etc", "{{7*7}}", "é", "\u0661" * 32, "F" * 32, ID]
)
def test_an_id_that_is_not_there_is_not_found(web: Web, session_id: str) -> None:
    problem(web.post("/execute", {"session_id": session_id, "command": "true"}), 404, "session_not_found")
    problem(web.post("/cleanup", {"session_id": session_id}), 404, "session_not_found")


def test_missing_fields_are_named(web: Web) -> None:
    refused(web.post("/execute", {"command": "true"}), "session_id")
    refused(web.post("/execute", {"session_id": ID}), "command")
    refused(web.post("/cleanup", {}), "session_id")
    refused(web.post("/cleanup"), "session_id")


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"not json",
        b"{'single': 1}",
        b'{"a": 1,}',
        b"[" * 1_000_000,
        b'{"timeout": ' + b"1" * 1_000_000 + b"}",
        b'{"timeout": NaN}',
        b'{"timeout": Infinity}',
        b'{"timeout": -Infinity}',
        b'{"timeout": 1e999}',
        b'{"user_id": "a", "user_id": "b"}',
        b'{"env": {"A": "1", "A": "2"}}',
        b'{"user_id": "\\ud800"}',
        b'{"user_id": "\\uD800x"}',
        b'"text"',
        b"7",
        b"null",
        b"[]",
        b"true",
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        b"\xff\xfe",
        b'{"user_id": "\xff"}',
        b'{"user_id": "a\nb"}',
        b"{}{}",
        b"\0",
    ],
    ids=lambda raw: repr(raw[:30]),
)
def test_a_body_that_is_not_a_json_object_is_refused(web: Web, raw: bytes) -> None:
    refused(web.post("/create_session", data=raw), "body")


def test_a_pair_of_surrogates_is_a_character(web: Web) -> None:
    answer = web.post("/execute", data=json.dumps({"session_id": ID, "command": "😀"}).encode())
    problem(answer, 404, "session_not_found")


def test_a_body_of_another_type_is_refused(web: Web) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        answer = web.http.post(
            "/create_session",
            data=b'{"user_id": "u"}',
            headers={"Authorization": f"Bearer {web.key}", "Content-Type": kind},
        )
        problem(answer, 415, "unsupported_media_type")


def test_no_body_at_all_means_no_fields(web: Web) -> None:
    answer = web.http.post("/create_session", headers={"X-API-Key": web.key})
    problem(answer, 503, "keeper_unavailable")


def test_a_body_over_the_limit_is_refused(web: Web, config: Config) -> None:
    body = {"session_id": ID, "command": "true", "stdin": "x" * config.body_limit}
    assert str(config.body_limit) in problem(web.post("/execute", body), 413, "body_too_large")["detail"]


LARGE_BODIES = {
    "executions.execute",
    "executions.execute_in",
    "executions.start",
    "executions.send_input",
    "run.run",
    "files.edit",
}


@pytest.mark.parametrize("endpoint", sorted(BODIES))
def test_most_bodies_are_small(web: Web, endpoint: str) -> None:
    """What is larger is read by few at a time, and only where large things are sent."""
    operator = endpoint.startswith("admin")
    key = Keys(web.store, lambda: 0.0).create("", "operator")[1] if operator else web.key
    rule = next(rule for rule in web.http.application.url_map.iter_rules() if rule.endpoint == endpoint)
    path = re.sub("<[^>]*>", ID, rule.rule)
    method = next(iter((rule.methods or set()) - {"OPTIONS", "HEAD"}))
    headers = {"X-API-Key": key, "Content-Type": "application/json"}
    raw = b'{"not_there": "' + b"x" * (1 << 20) + b'"}'
    answer = web.http.open(path, method=method, data=raw, headers=headers)
    if endpoint in LARGE_BODIES:
        problem(answer, 400, "invalid_request")
    else:
        assert "1048576" in problem(answer, 413, "body_too_large")["detail"]


HOSTILE_TEXTS = {
    "quotes behind backslashes": b'\\"',
    "backslashes": b"\\",
    "quotes": b'"',
    "brackets": b"[",
    "strings": b'"",',
    "an endless string": b'x\\"',
}


@pytest.mark.parametrize("text", HOSTILE_TEXTS.values(), ids=HOSTILE_TEXTS)
def test_a_large_hostile_text_is_refused_as_quickly_as_a_harmless_one_is_read(web: Web, text: bytes) -> None:
    """Reading is not interrupted by other requests."""
    size = 5 << 20
    began = time.process_time()
    problem(web.post("/execute", data=b'{"command": "' + b"x" * size + b'"}'), 400, "invalid_request")
    usual = time.process_time() - began
    began = time.process_time()
    refused(web.post("/execute", data=b'{"command": "' + text * (size // len(text))), "body")
    assert time.process_time() - began < 0.5 + 5 * usual


def test_a_compressed_body_is_not_unpacked(web: Web) -> None:
    answer = web.post("/create_session", data=gzip.compress(b"{}"), Content_Encoding="gzip")
    assert answer.status_code in (400, 415)


@pytest.mark.parametrize("key", ["", "a b", "x" * 201, "é", "a\tb"])
def test_an_idempotency_key_that_is_none_is_refused(web: Web, key: str) -> None:
    refused(web.post("/create_session", {}, Idempotency_Key=key), "Idempotency-Key")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("limit=", "limit"),
        ("cursor=x", "cursor"),
        ("cursor=1/2", "cursor"),
        ("user=u", "user"),
        ("user_id=" + "x" * 300, "user_id"),
        ("&".join(f"metadata.{n}=x" for n in range(33)), "metadata"),
    ],
)
def test_a_question_that_cannot_be_answered_names_the_field(web: Web, query: str, field: str) -> None:
    refused(web.get(f"/v1/sessions?{query}"), field)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer x"},
        {"Authorization": "Basic KEY"},
        {"Authorization": "KEY"},
        {"Authorization": "Bearer KEY "},
        {"X-API-Key": "KEY", "Authorization": "Bearer other"},
        {"X-API-Key": "e2b_" + "0" * 80},
        {"X-API-Key": "é"},
    ],
    ids=str,
)
def test_without_the_right_key_there_is_one_answer(web: Web, headers: dict[str, str]) -> None:
    given = {name: value.replace("KEY", web.key) for name, value in headers.items()}
    answer = web.http.post("/create_session", headers=given)
    body = problem(answer, 401, "unauthorized")
    assert body["detail"] == errors.Unauthorized().detail
    assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_a_key_in_the_query_opens_nothing(web: Web) -> None:
    problem(web.http.get(f"/v1/sessions?api_key={web.key}"), 401, "unauthorized")


def test_many_wrong_keys_from_one_address_are_slowed_down(web: Web) -> None:
    """Windows begin with the minute: one may end among these."""
    answers = [web.http.get("/v1/sessions", headers={"X-API-Key": "x"}) for _ in range(125)]
    assert {answer.status_code for answer in answers[:60]} <= {401, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    body = problem(refused, 429, "rate_limited")
    assert (body["limit"], body["allowed"]) == ("rate_failures", 60)
    assert 0 < int(refused.headers["Retry-After"]) <= 60
    assert refused.headers["RateLimit-Remaining"] == "0"


def test_a_foreign_host_name_is_refused(web: Web) -> None:
    problem(web.get("/v1/sessions", Host="evil.example"), 421, "wrong_host")


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:5000", "127.0.0.1:5000", "[::1]:5000", "[::1]", "LOCALHOST"]
)
def test_the_machines_own_names_are_answered(web: Web, host: str) -> None:
    assert web.get("/v1/sessions", Host=host).status_code == 200


def test_an_unknown_path_or_method_is_a_problem_too(web: Web) -> None:
    problem(web.get("/v2/sessions"), 404, "not_found")
    answer = web.get("/execute")
    problem(answer, 405, "method_not_allowed")
    assert "POST" in answer.headers["Allow"]


@pytest.mark.parametrize("given", ["", "a b", "x" * 65, "é", "a;b"])
def test_a_strange_request_id_is_replaced(web: Web, given: str) -> None:
    assert web.get("/healthz", **{"X-Request-Id": given}).headers["X-Request-Id"] != given


def test_a_callers_request_id_is_kept(web: Web) -> None:
    assert web.get("/healthz", **{"X-Request-Id": "mine-1.2_3"}).headers["X-Request-Id"] == "mine-1.2_3"


@pytest.mark.parametrize("glob", ["*x" * 33, "**/" * 17, "x" * 1025])
def test_a_glob_of_many_stars_is_refused_before_anything_is_made_of_it(web: Web, glob: str) -> None:
    refused(web.get(f"/v1/sessions/{ID}/files?glob={glob}"), "glob")
    refused(web.post(f"/v1/sessions/{ID}/files/search", {"pattern": "x", "glob": glob}), "glob")
    problem(web.get(f"/v1/sessions/{ID}/files?glob={'*x' * 32}"), 404, "session_not_found")
