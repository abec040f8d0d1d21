"""The audit and the requests of a client: recorded once, and not acted on while that cannot be done."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from typing import Any

from expect import problem
from web_in_process import Web

from server.config import Config


def records(config: Config, chain: str = "default") -> list[dict[str, Any]]:
    with contextlib.closing(sqlite3.connect(config.audit_path)) as connection:
        sql = "SELECT line FROM records WHERE chain = ? ORDER BY seq"
        return [json.loads(line) for (line,) in connection.execute(sql, (chain,))]


def test_while_nothing_can_be_recorded_nothing_is_done_and_reading_goes_on(web: Web, config: Config) -> None:
    """Somebody holds the file: as good as a full disk. The call that found it out has its record later."""
    first = web.post("/cleanup", {"session_id": "none"})
    with contextlib.closing(sqlite3.connect(config.audit_path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        second = web.post("/cleanup", {"session_id": "none"})
        problem(second, 404, "session_not_found")
        third = web.post("/cleanup", {"session_id": "none"})
        assert problem(third, 503, "store_unavailable")["retryable"] is True
        assert web.get("/v1/sessions").status_code == 200
        holder.execute("ROLLBACK")
    fourth = web.post("/cleanup", {"session_id": "none"})
    problem(fourth, 404, "session_not_found")
    wanted = [answer.headers["X-Request-Id"] for answer in (first, second, third, fourth)]
    found = records(config)
    assert [one["request_id"] for one in found] == wanted
    assert [one["details"].get("late") for one in found] == [None, True, True, None]


def test_what_is_rehearsed_before_the_first_request_is_not_recorded(web: Web, config: Config) -> None:
    web.http.get("/nowhere", environ_overrides={"sandbox.rehearsal": True})
    web.http.get("/nowhere")
    assert [one["code"] for one in records(config, "@anonymous")] == ["unauthorized"]


def test_a_failure_of_ours_is_recorded_as_one(web: Web, config: Config) -> None:
    problem(web.post("/create_session", {}), 503, "keeper_unavailable")
    (found,) = records(config)
    assert (found["action"], found["outcome"], found["code"]) == (
        "session.create",
        "failed",
        "keeper_unavailable",
    )
