"""A33, A95, A103, I8: whatever is said, however often, the audit has one line for it, and stays readable."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from typing import Any
from urllib.parse import quote

import requests
from invariants import Neighbour, Session, Tenant, is_problem
from stack import Stack

EVIL = '\n{"action":"session.create","outcome":"done"}\r\x1b[2J\x1b]52;c;aGk=\x07\x7f\x9b\x85\u2028\u202e"'


def lines(stack: Stack, chain: str) -> list[str]:
    """As they are in the file."""
    with contextlib.closing(sqlite3.connect(stack.dir / "state" / "store" / "audit.db")) as connection:
        rows = connection.execute("SELECT line FROM records WHERE chain = ? ORDER BY seq", (chain,))
        return [str(line) for (line,) in rows]


def records(stack: Stack, chain: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(stack, chain)]


def test_what_is_said_in_names_paths_and_headers_is_one_escaped_line(
    stack: Stack, attacker: Tenant, session: Session, neighbour: Neighbour
) -> None:
    before = len(lines(stack, "default"))
    calls = [
        attacker.call("POST", f"/v1/sessions/{session.id}/files/mkdir", json={"path": f"d{EVIL}"}),
        attacker.call("PUT", f"/v1/sessions/{session.id}/files/content", params={"path": EVIL}, data=b"x"),
        attacker.call("POST", f"/v1/sessions/{quote(EVIL, safe='')}/extend"),
        attacker.call("POST", "/cleanup", json={"session_id": EVIL}),
        attacker.call("POST", "/create_session", json={"user_id": EVIL}),
        attacker.call("DELETE", "/v1/uploads/" + quote(EVIL, safe="")),
        attacker.call("POST", "/execute", json={"session_id": session.id, "command": EVIL, "shell": None}),
        attacker.call(
            "POST",
            "/execute",
            json={"session_id": session.id, "command": "true"},
            headers={"User-Agent": 'curl "\x9b2J', "X-Forwarded-For": '1.2.3.4"\x9b2J{'},
        ),
    ]
    fresh = lines(stack, "default")[before:]
    assert [json.loads(line)["request_id"] for line in fresh] == [
        answer.headers["X-Request-Id"] for answer in calls
    ]
    for line in fresh:
        assert all(" " <= char <= "~" for char in line), line
    export = attacker.call("GET", "/v1/audit", headers={"Accept": "application/x-ndjson"})
    assert all(byte == 0x0A or 0x20 <= byte <= 0x7E for byte in export.content)
    assert len(export.content.splitlines()) == before + len(calls)
    neighbour.check()


def test_each_refused_and_each_accepted_call_has_one_line(
    stack: Stack, attacker: Tenant, session: Session
) -> None:
    """I8, for a storm of commands of which some are too many."""
    answers = [session.execute("true", timeout=-1 if number % 2 else 5) for number in range(40)]
    ids = [one["request_id"] for one in records(stack, "default")]
    assert [ids.count(answer.headers["X-Request-Id"]) for answer in answers] == [1] * len(answers)


def test_a_flood_of_wrong_keys_fills_no_disk(stack: Stack, neighbour: Neighbour) -> None:
    """Beyond some hundreds a minute they are counted, and summed up later."""
    before = len(lines(stack, "@anonymous"))
    with neighbour.undisturbed(), requests.Session() as wire:
        for number in range(3000):
            answer = wire.post(
                stack.url + "/execute", headers={"X-API-Key": f"e2b_{number}"}, json={}, timeout=30
            )
            is_problem(answer, "unauthorized")
    assert len(lines(stack, "@anonymous")) - before <= 2 * 2 * 300  # two workers, two windows at most


def test_a_stranger_learns_nothing_from_anybody_elses_chain(
    stack: Stack, attacker: Tenant, neighbour: Neighbour
) -> None:
    for query in (
        {"session": neighbour.session.id},
        {"cursor": 0},
        {"actor": "anonymous"},
        {"order": "desc"},
    ):
        answer = attacker.call("GET", "/v1/audit", params=query)
        assert {one["chain"] for one in answer.json()["records"]} <= {"default"}
    for query in ({"tenant": "bystander"}, {"chain": "bystander"}):
        is_problem(attacker.call("GET", "/v1/audit", params=query), "invalid_request")
