"""Attacks with wrong, stolen and withdrawn keys (A94, A95, A105), on a server of their own."""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import requests
from invariants import Tenant, is_problem
from stack import Stack, docker, running

SECRET = "s3cr3t-of-the-caller"


@pytest.fixture(scope="module")
def strict() -> Iterator[Stack]:
    with running(SANDBOX_FAILURE_LIMIT="20/minute", SANDBOX_STORAGE_SIZE="256m") as server:
        yield server


def test_a94_a_withdrawn_key_is_refused_at_once(strict: Stack) -> None:
    key = strict.new_key("default")
    assert strict.call("GET", "/v1/sessions", key=key).status_code == 200
    with closing(sqlite3.connect(strict.dir / "state" / "store" / "store.db")) as store:
        store.execute("UPDATE keys SET revoked_at = ? WHERE id = ?", (time.time(), key[4:20]))
        store.commit()
    is_problem(strict.call("GET", "/v1/sessions", key=key), "unauthorized")


def test_a105_no_key_and_no_secret_of_a_caller_is_ever_written_down(strict: Stack) -> None:
    """Logs, store, state directory, and what the engine shows of the container."""
    tenant = Tenant(strict, strict.key)
    session = tenant.open(env={"TOKEN": SECRET})
    session.run(f"echo {SECRET} | wc -c", stdin=SECRET, env={"OTHER": SECRET})
    session.python(f"'{SECRET}'")
    seen = docker("inspect", session.container) + strict.log("web") + strict.log("keeper")
    secrets = (strict.key, strict.key[20:], SECRET)
    search = ["grep", "-rlaF", *(f"--regexp={secret}" for secret in secrets), str(strict.dir / "state")]
    found = subprocess.run(search, capture_output=True, text=True, timeout=100)
    tenant.close_all()
    assert (found.returncode, found.stdout) == (1, "")
    assert [secret for secret in secrets if secret in seen] == []


def test_a95_wrong_keys_are_slowed_down_and_right_ones_are_not(strict: Stack) -> None:
    """From the same address even: behind a proxy everybody has the same one."""
    wrong = {"X-API-Key": "e2b_" + "0" * 80}
    answers = [requests.get(strict.url + "/v1/sessions", headers=wrong, timeout=10) for _ in range(80)]
    assert {answer.status_code for answer in answers} == {401, 429}
    limited = [answer for answer in answers if answer.status_code == 429]
    assert len(limited) >= 80 - 2 * 20
    for answer in limited:
        is_problem(answer, "rate_limited")
        assert int(answer.headers["Retry-After"]) > 0
    assert all(strict.call("GET", "/v1/sessions").status_code == 200 for _ in range(8))
