"""Attacks of one tenant on another (A93, A96), and on the places they share in the server."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from invariants import Neighbour, Session, Tenant, is_problem
from stack import Stack, running

CALLS = [
    ("GET", "/v1/sessions/{id}", None),
    ("DELETE", "/v1/sessions/{id}", None),
    ("POST", "/v1/sessions/{id}/extend", {}),
    ("POST", "/v1/sessions/{id}/execute", {"command": "touch /workspace/intruder"}),
    ("POST", "/execute", {"session_id": "{id}", "command": "touch /workspace/intruder"}),
    ("POST", "/cleanup", {"session_id": "{id}"}),
]


@pytest.fixture(scope="module")
def ended(stack: Stack, neighbour: Neighbour) -> Iterator[str]:
    session = neighbour.session.tenant.open()
    session.close()
    yield session.id


@pytest.mark.parametrize("call", CALLS, ids=lambda call: f"{call[0]} {call[1]}")
def test_a93_a_foreign_session_a_foreign_dead_one_and_no_session_get_one_answer(
    attacker: Tenant, neighbour: Neighbour, ended: str, call: tuple[str, str, dict[str, str] | None]
) -> None:
    """The same 404, word for word, and nothing happens to the neighbour."""
    method, path, body = call
    answers = []
    for name in (neighbour.session.id, ended, secrets.token_hex(16)):
        fields = body and {key: value.replace("{id}", name) for key, value in body.items()}
        options = {} if fields is None else {"json": fields}
        problem = is_problem(
            attacker.call(method, path.replace("{id}", name), **options), "session_not_found"
        )
        answers.append({key: value for key, value in problem.items() if key != "request_id"})
    assert answers[0] == answers[1] == answers[2]
    assert neighbour.session.run("ls -A /workspace")["stdout"] == ""


def test_a93_a_list_shows_nobody_elses_sessions(
    attacker: Tenant, neighbour: Neighbour, session: Session
) -> None:
    for query in ("", "?user_id=%25", "?limit=1000", "?metadata.a=%27%20OR%201=1--", "?cursor=0/" + "0" * 32):
        assert neighbour.session.id not in attacker.call("GET", "/v1/sessions" + query).text


@pytest.mark.parametrize(
    "name",
    [
        "1",
        "0" * 32,
        "' OR '1'='1",
        "{{7*7}}",
        "${7*7}",
        "../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "x" * 10_000,
        "\u0661" * 32,
        "%00",
        "$ne",
        "a b",
        "\u202e",
        "%ff%fe",
        "*",
        "%",
    ],
)
def test_a96_an_id_that_is_none_is_not_found(attacker: Tenant, name: str) -> None:
    is_problem(
        attacker.call("GET", f"/v1/sessions/{name}"),
        "session_not_found",
        "not_found",
        "invalid_request",
        "uri_too_long",
    )
    codes = ("session_not_found", "invalid_request")
    is_problem(attacker.call("POST", "/execute", json={"session_id": name, "command": "true"}), *codes)


def test_a96_ids_are_random_and_long(attacker: Tenant) -> None:
    names = {attacker.open().id for _ in range(4)}
    assert len(names) == 4 and all(len(name) == 32 and int(name, 16) >= 0 for name in names)
    assert len({name[:6] for name in names}) == 4


def test_an_idempotency_key_of_one_tenant_means_nothing_to_another(
    attacker: Tenant, neighbour: Neighbour
) -> None:
    headers = {"Idempotency-Key": "shared"}
    mine = attacker.call("POST", "/v1/sessions", json={}, headers=headers).json()["session_id"]
    theirs = neighbour.session.tenant.call("POST", "/v1/sessions", json={}, headers=headers).json()[
        "session_id"
    ]
    attacker.opened.append(mine)
    neighbour.session.tenant.opened.append(theirs)
    assert mine != theirs


def test_an_idempotency_key_of_one_session_means_nothing_in_another(attacker: Tenant) -> None:
    first, second = attacker.open(), attacker.open()
    for session in (first, second):
        body = {"command": "echo run >>log; cat log"}
        answer = attacker.call(
            "POST", f"/v1/sessions/{session.id}/execute", json=body, headers={"Idempotency-Key": "same"}
        )
        assert answer.json()["stdout"] == "run\n"


@pytest.mark.parametrize("key", ["", "a b", "x" * 201, "\x7f", "é"])
def test_an_idempotency_key_that_is_none_is_refused(attacker: Tenant, key: str) -> None:
    headers = {"Idempotency-Key": key.encode("latin-1")}
    is_problem(
        attacker.call("POST", "/v1/sessions", json={}, headers=headers), "invalid_request", "malformed_http"
    )


def test_a_user_of_one_tenant_is_not_the_user_of_the_same_name_of_another(
    attacker: Tenant, neighbour: Neighbour
) -> None:
    assert attacker.open(user_id="alice").id != neighbour.session.tenant.open(user_id="alice").id


def test_large_bodies_of_one_tenant_do_not_keep_out_another(attacker: Tenant, neighbour: Neighbour) -> None:
    """Forty large requests that run for a while: the neighbour's one is carried out beside them."""
    sessions = [attacker.open() for _ in range(3)]
    large = "x" * (1200 << 10)
    threads = [
        threading.Thread(
            target=session.execute, args=(["sleep", "6"],), kwargs={"timeout": 8, "stdin": large}
        )
        for session in sessions
        for _ in range(14)
    ]
    for thread in threads:
        thread.start()
    time.sleep(1.5)
    began = time.monotonic()
    answers = [neighbour.session.execute(["wc", "-c"], stdin=large) for _ in range(2)]
    took = time.monotonic() - began
    for thread in threads:
        thread.join(timeout=60)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert took < 4, f"the neighbour's large requests took {took:.1f} s"


def test_bodies_that_are_begun_and_never_sent_do_not_keep_out_another(
    attacker: Tenant, neighbour: Neighbour
) -> None:
    """Nobody knows how large they will be, so each holds a place for large ones while it is awaited."""
    head = (
        f"POST /execute HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {attacker.key}\r\n"
        "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"
    )
    with contextlib.ExitStack() as held:
        for _ in range(40):
            where = ("127.0.0.1", attacker.stack.port)
            held.enter_context(socket.create_connection(where, timeout=30)).sendall(head.encode())
        time.sleep(1)
        for _ in range(4):  # either worker
            began = time.monotonic()
            answer = neighbour.session.execute(["wc", "-c"], stdin="x" * (1200 << 10))
            assert answer.status_code == 200, answer.text
            assert time.monotonic() - began < 5


def test_a_tenant_that_is_promised_much_disk_space_does_not_close_the_storage_to_others() -> None:
    """What cold and empty sessions are promised costs nothing: one tenant may ask for all there is."""
    settings = {"SANDBOX_DISK_OVERCOMMIT": "1", "SANDBOX_TENANT_DISK": "1g", "SANDBOX_MEMORY": "64m"}
    with running(**settings) as stack:
        greedy, modest = Tenant(stack, stack.key), Tenant(stack, stack.new_key("modest"))
        wish = {"disk": 1 << 30}
        refusal = next(
            answer
            for answer in (greedy.call("POST", "/v1/sessions", json=wish) for _ in range(9))
            if answer.status_code != 201
        )
        is_problem(refusal, "storage_full")
        assert modest.call("POST", "/v1/sessions", json=wish).status_code == 201
        is_problem(greedy.call("POST", "/v1/sessions", json=wish), "storage_full")
        for session in stack.call("GET", "/v1/sessions", key=modest.key).json()["sessions"]:
            modest.close(session["session_id"])


def test_concurrent_creates_do_not_exceed_what_one_user_may_have(attacker: Tenant) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(12) as pool:
        answers = list(
            pool.map(lambda _: attacker.call("POST", "/v1/sessions", json={"user_id": "one"}), range(12))
        )
    names = {answer.json()["session_id"] for answer in answers}
    attacker.opened += names
    assert len(names) == 1
    assert sorted(answer.status_code for answer in answers) == [200] * 11 + [201]
