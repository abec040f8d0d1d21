"""Floods are slowed down for who sends them and for nobody else (A95), on a server of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests
from invariants import is_problem
from requests.adapters import HTTPAdapter
from stack import Stack, running

FAILURES, FILES = 20, 10
WRONG = {"X-API-Key": "e2b_" + "0" * 80}


class From(HTTPAdapter):
    """Connections that come from this address."""

    def __init__(self, address: str) -> None:
        self._address = address
        super().__init__(pool_maxsize=16)

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options, source_address=(self._address, 0))


@pytest.fixture(scope="module")
def strict() -> Iterator[Stack]:
    settings = {"SANDBOX_FAILURE_LIMIT": f"{FAILURES}/minute", "SANDBOX_RATE_FILES": f"{FILES}/minute"}
    with running(**settings) as server:
        yield server


@pytest.fixture
def stranger() -> Iterator[requests.Session]:
    """From an address that is no trusted proxy's."""
    with requests.Session() as session:
        session.mount("http://", From("127.0.0.2"))
        yield session


def test_a95_a_flood_of_wrong_keys_is_limited_and_others_do_not_notice(
    strict: Stack, stranger: requests.Session
) -> None:
    def attack(_: int) -> requests.Response:
        return stranger.get(strict.url + "/v1/sessions", headers=WRONG, timeout=60)

    with ThreadPoolExecutor(17) as pool:
        good = pool.submit(lambda: [strict.call("GET", "/v1/sessions").status_code for _ in range(30)])
        answers = list(pool.map(attack, range(1000)))
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) == {401, 429}
    assert statuses[401] <= 3 * FAILURES, "so many in a minute, over all workers; a minute may end meanwhile"
    refused = next(answer for answer in answers if answer.status_code == 429)
    is_problem(refused, "rate_limited")
    assert 0 < int(refused.headers["Retry-After"]) <= 60
    assert set(good.result(60)) == {200}, "a good key from another address"
    assert requests.get(strict.url + "/healthz", timeout=60).status_code == 200


def test_a_stranger_cannot_choose_the_address_that_it_is_counted_for(
    strict: Stack, stranger: requests.Session
) -> None:
    statuses = Counter(
        stranger.get(
            strict.url + "/v1/sessions",
            headers={**WRONG, "X-Forwarded-For": f"198.51.100.{number}"},
            timeout=60,
        ).status_code
        for number in range(3 * FAILURES)
    )
    assert statuses[429] > 0


@pytest.mark.parametrize("path", ["/v1/sessions", "/readyz", "/healthz"])
def test_a_flood_under_a_wrong_host_name_is_limited_for_its_address(strict: Stack, path: str) -> None:
    """Whether the route is open or not, and whatever key is sent."""
    client = {"/v1/sessions": "198.51.100.1", "/readyz": "198.51.100.2", "/healthz": "198.51.100.3"}[path]

    def ask(address: str, host: str) -> requests.Response:
        return strict.call("GET", path, headers={"Host": host, "X-Forwarded-For": address})

    answers = [ask(client, "evil.example") for _ in range(3 * FAILURES)]
    assert {answer.status_code for answer in answers} == {421, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert is_problem(refused, "rate_limited")["limit"] == "rate_failures"
    assert 0 < int(refused.headers["Retry-After"]) <= 60
    assert ask("198.51.100.9", "evil.example").status_code == 421, "another address"
    assert ask(client, "localhost").status_code == 200, "a right name, from the same address"


def test_behind_a_trusted_proxy_each_client_has_its_own_count(strict: Stack) -> None:
    """As nginx on this machine would send it."""

    def fail(client: str) -> int:
        headers = {**WRONG, "X-Forwarded-For": client}
        return requests.get(strict.url + "/v1/sessions", headers=headers, timeout=60).status_code

    assert 429 in {fail("203.0.113.7") for _ in range(3 * FAILURES)}
    assert fail("203.0.113.8") == 401
    assert 429 in {fail(f"2001:db8::{number:x}") for number in range(3 * FAILURES)}, "one /64 is one client"
    assert fail("2001:db8:0:1::1") == 401


def test_a_tenant_that_asks_too_often_is_told_where_it_stands_and_others_are_not_slowed(
    strict: Stack,
) -> None:
    first = strict.call("GET", "/v1/uploads")
    assert first.headers["RateLimit-Limit"] == str(FILES)
    assert 0 <= int(first.headers["RateLimit-Remaining"]) < FILES
    assert 0 < int(first.headers["RateLimit-Reset"]) <= 60
    assert first.headers["RateLimit-Policy"] == f'"files";q={FILES};w=60'
    answers = [strict.call("GET", "/v1/uploads") for _ in range(3 * FILES)]
    refused = next(answer for answer in answers if answer.status_code == 429)
    is_problem(refused, "rate_limited")
    body = refused.json()
    assert (body["limit"], body["allowed"], body["used"] > FILES) == ("rate_files", FILES, True)
    assert refused.headers["RateLimit-Remaining"] == "0"
    assert refused.headers["Retry-After"] == refused.headers["RateLimit-Reset"]
    assert strict.call("GET", "/v1/sessions").status_code == 200, "another kind of requests"
    assert strict.call("GET", "/v1/uploads", key=strict.new_key("other")).status_code == 200
    assert strict.call("GET", "/v1/limits").json()["rates"]["files"]["allowed"] == FILES
