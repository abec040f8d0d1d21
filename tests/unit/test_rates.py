"""Rates are counted over all workers, told with each answer, and do not stop the server without Redis."""

from __future__ import annotations

import multiprocessing
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from server import config as configuration
from server import instance as installation
from server.api.addresses import Addresses, whole_network
from server.api.rates import Rates, class_of, rates_of
from server.api.windows import SharedStorage
from server.app import build
from server.config import Config

SPAWN = multiprocessing.get_context("spawn")


def rates(config: Config, path: Path) -> Rates:
    return rates_of(Flask("test"), config, lambda: "", path)


def passed(counted: Rates, number: int, whose: str = "a") -> int:
    return sum(not counted.hit("create", whose).exceeded for _ in range(number))


@pytest.fixture
def hourly(config: Config) -> Config:
    return replace(config, rate_create="100/hour", web_workers=2)


def _hit(config: Config, path: Path, number: int, go: Any, told: Any) -> None:
    counted = rates(config, path)
    counted.look("create", "a")
    go.wait(30)
    told.put(passed(counted, number))


def test_a_limit_holds_for_all_workers_together(hourly: Config, tmp_path: Path) -> None:
    """Four processes hit it at once: exactly so many get through, not so many each."""
    go, told = SPAWN.Barrier(4), SPAWN.Queue()
    path = tmp_path / "rates"
    workers = [SPAWN.Process(target=_hit, args=(hourly, path, 200, go, told)) for _ in range(4)]
    for worker in workers:
        worker.start()
    allowed = sum(told.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join(30)
    assert 95 <= allowed <= 103, "those at the very limit may miss each other"
    assert rates(hourly, path).hit("create", "a").exceeded, "who starts later knows what others have counted"


def test_what_was_counted_survives_its_worker(hourly: Config, tmp_path: Path) -> None:
    go, told = SPAWN.Barrier(1), SPAWN.Queue()
    worker = SPAWN.Process(target=_hit, args=(hourly, tmp_path / "rates", 60, go, told))
    worker.start()
    assert told.get(timeout=60) == 60
    worker.kill()
    worker.join(30)
    assert passed(rates(hourly, tmp_path / "rates"), 60) == 40


def test_tenants_and_kinds_of_requests_are_counted_apart(hourly: Config, tmp_path: Path) -> None:
    counted = rates(hourly, tmp_path / "rates")
    assert passed(counted, 200, "a") == 100
    assert passed(counted, 50, "b") == 50
    assert not counted.hit("execute", "a").exceeded


def test_a_window_begins_anew(config: Config, tmp_path: Path) -> None:
    now = [1000.0]
    storage = SharedStorage("embedded://", path=str(tmp_path / "rates"), workers=1)
    counted = Rates(replace(config, rate_create="3/minute"), storage, storage, lambda: now[0])
    assert passed(counted, 5) == 3
    assert counted.look("create", "a").reset == 20, "to the end of the minute"
    now[0] += 20
    assert passed(counted, 5) == 3


def test_a_flood_of_names_takes_no_more_room_and_does_not_free_who_is_limited(
    hourly: Config, tmp_path: Path
) -> None:
    counted = rates(hourly, tmp_path / "rates")
    assert passed(counted, 150, "guesser") == 100
    size = (tmp_path / "rates").stat().st_size
    for number in range(40_000):
        counted.hit("create", f"10.{number >> 8}.{number & 255}")
    assert (tmp_path / "rates").stat().st_size == size
    assert counted.hit("create", "guesser").exceeded


def test_what_is_open_to_everybody_is_limited_by_address(config: Config) -> None:
    """Windows begin with the minute: one may end among these."""
    installation.prepare(config)
    app = build(replace(config, rate_address="5/minute"))

    def ask(address: str, path: str = "/v1/version") -> TestResponse:
        return app.test_client().get(path, environ_base={"REMOTE_ADDR": address})

    answers = [ask("203.0.113.1") for _ in range(16)]
    assert [answer.status_code for answer in answers[:5]] == [200] * 5
    refused = next(answer for answer in answers if answer.status_code == 429)
    told = refused.get_json()
    assert (told["code"], told["limit"], told["allowed"]) == ("rate_limited", "rate_address", 5)
    assert 0 < int(refused.headers["Retry-After"]) <= 60
    assert ask("203.0.113.2").status_code == 200, "another address"
    assert ask("203.0.113.1", "/healthz").status_code == 200, "this one must always answer"
    app.extensions["sandbox"].sessions._store.close()
    app.extensions["sandbox"].journal.ledger.close()


def test_requests_are_of_the_kind_that_their_endpoint_says() -> None:
    kinds = {
        "sessions.create": "create",
        "snapshots.fork": "create",
        "executions.start": "execute",
        "executions.get": "read",
        "contents.upload": "files",
        "sessions.delete": "read",
    }
    assert {name: class_of(name) for name in kinds} == kinds
    assert class_of(None) == "read"


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("127.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.1", "1.2.3.4, 203.0.113.9", "203.0.113.9"),  # what a client says itself is not believed
        ("127.0.0.1", "203.0.113.9, 10.0.0.7", "203.0.113.9"),  # through another proxy of ours
        ("203.0.113.9", "1.2.3.4", "203.0.113.9"),
        ("127.0.0.2", "1.2.3.4", "127.0.0.2"),
        ("127.0.0.1", "nonsense", "127.0.0.1"),
        ("127.0.0.1", "1.2.3.4, nonsense", "127.0.0.1"),
        ("::ffff:127.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("::1", "2001:db8::1", "2001:db8::1"),
    ],
)
def test_the_address_is_what_trusted_proxies_say(peer: str, forwarded: str, client: str) -> None:
    config = configuration.load(
        {"SANDBOX_STATE_DIR": "/nowhere", "SANDBOX_PROXIES": "127.0.0.1,::1,10.0.0.0/8"}
    )
    assert Addresses(config.proxies).behind(peer, forwarded) == client


def test_one_network_of_ipv6_is_one_caller() -> None:
    assert whole_network("2001:db8:1:2::1") == whole_network("2001:db8:1:2:ffff::9") == "2001:db8:1:2::/64"
    assert whole_network("2001:db8:1:3::1") != whole_network("2001:db8:1:2::1")
    assert whole_network("203.0.113.9") == "203.0.113.9"
    assert whole_network("::ffff:203.0.113.9") != whole_network("::ffff:203.0.113.10")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A real one, on a socket of its own."""
    path = tmp_path / "redis.sock"
    command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(tmp_path)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, "redis-server did not start"
        time.sleep(0.02)
    yield f"redis+unix://{path}", server
    server.kill()
    server.wait(30)


def test_several_servers_count_together_in_redis(
    hourly: Config, tmp_path: Path, redis: tuple[str, Any]
) -> None:
    config = replace(hourly, ratelimit_storage=redis[0])
    here, there = rates(config, tmp_path / "here"), rates(config, tmp_path / "there")
    assert passed(here, 60) + passed(there, 60) == 100
    standing = there.look("create", "a")
    assert (standing.limit, standing.used >= 100, 0 < standing.reset <= 3600) == (100, True, True)


def test_without_its_redis_a_server_counts_for_itself_at_once(
    hourly: Config, tmp_path: Path, redis: tuple[str, subprocess.Popen[bytes]]
) -> None:
    counted = rates(replace(hourly, ratelimit_storage=redis[0]), tmp_path / "rates")
    assert passed(counted, 10) == 10
    redis[1].kill()
    redis[1].wait(30)
    began = time.monotonic()
    assert passed(counted, 150) == 100, "limits still hold, for this server alone"
    assert time.monotonic() - began < 30


def test_a_redis_that_is_silent_is_not_waited_for(hourly: Config, tmp_path: Path) -> None:
    """It takes connections and says nothing: one request finds out, the others do not ask for a while."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        counted = rates(replace(hourly, ratelimit_storage=address), tmp_path / "rates")
        began = time.monotonic()
        assert passed(counted, 100) == 100
        assert time.monotonic() - began < 20, "100 requests that wait a quarter of a second each take longer"
