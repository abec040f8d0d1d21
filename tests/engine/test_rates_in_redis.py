"""Rates counted in Redis, by a running server of two workers: one limit for both, and Redis holds it."""

from __future__ import annotations

import os
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from expect import eventually, problem
from stack import Stack, running
from test_workers import workers

ALLOWED = 40


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a real one."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    place = str(tmp_path_factory.mktemp("redis"))
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", place]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: asked(port, "PING") == "+PONG")
        yield port
    finally:
        server.kill()
        server.wait(30)


@pytest.fixture(scope="module")
def stack(redis: int) -> Iterator[Stack]:
    storage = f"redis://127.0.0.1:{redis}/0"
    limits = {"SANDBOX_RATE_CREATE": f"{ALLOWED}/day", "SANDBOX_WEB_WORKERS": "2"}
    with running(SANDBOX_RATELIMIT_STORAGE=storage, **limits) as server:
        yield server


def asked(port: int, *words: str) -> str:
    """What Redis answers, as it comes."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(" ".join(words).encode() + b"\r\n")
            return connection.recv(100_000).decode().strip()
    except ConnectionRefusedError:
        return ""


def connected(pid: int, port: int) -> bool:
    """Whether a process has a connection to that port of this machine."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {row[9] for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "01"}
    files = Path(f"/proc/{pid}/fd")
    return any(os.readlink(file) in {f"socket:[{inode}]" for inode in inodes} for file in files.iterdir())


def create(stack: Stack) -> requests.Response:
    """On a connection of its own, which the kernel gives to either worker. Nothing is opened."""
    return stack.call("POST", "/v1/sessions", json={"image": "none"})


def test_both_workers_count_towards_one_limit_in_redis(stack: Stack, redis: int) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: create(stack), range(3 * ALLOWED)))
    assert Counter(answer.status_code for answer in answers) == {400: ALLOWED, 429: 2 * ALLOWED}
    eventually(lambda: all(connected(pid, redis) for pid in workers(stack)))
    refused = problem(create(stack), 429, "rate_limited")
    assert (refused["limit"], refused["allowed"]) == ("rate_create", ALLOWED)
    assert any(int(asked(redis, "GET", key).split()[-1]) > ALLOWED for key in keys(redis))


def keys(port: int) -> list[str]:
    return [line for line in asked(port, "KEYS", "*").split() if line[0] not in "*$"]


def test_when_redis_forgets_the_limit_begins_anew(stack: Stack, redis: int) -> None:
    """Nothing of it is held by the workers themselves."""
    problem(create(stack), 429, "rate_limited")
    assert asked(redis, "FLUSHALL") == "+OK"
    assert create(stack).status_code == 400
