"""Is it alive, is it ready, what is it: told without a key, and truly."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from expect import eventually
from stack import IMAGE_TAG, Stack, docker


def asked(stack: Stack, path: str) -> requests.Response:
    return requests.get(stack.url + path, timeout=20)


def await_answer(stack: Stack, status: int) -> dict[str, Any]:
    """What is told may be a few seconds old."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            answer = asked(stack, "/readyz")
            if answer.status_code == status:
                return dict(answer.json())
        except requests.RequestException:
            pass
        time.sleep(0.1)
    raise AssertionError(f"/readyz never answered {status}")


@pytest.fixture(scope="module")
def imageless() -> Iterator[Stack]:
    """A server whose image was never built."""
    stack = Stack(SANDBOX_IMAGES="default=sandbox-server/never-built:latest")
    try:
        stack.start_keeper()
        stack.start_web()
        yield stack
    finally:
        stack.remove()


def test_it_is_alive(stack: Stack) -> None:
    answer = asked(stack, "/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_it_is_ready_when_store_keeper_engine_and_image_are_and_the_wall_is_whole(stack: Stack) -> None:
    # Each worker remembers for a moment what it was told.
    eventually(lambda: asked(stack, "/readyz").json()["status"] != "checking")
    answer = asked(stack, "/readyz")
    told = answer.json()
    assert told["checks"] == dict.fromkeys(("store", "keeper", "engine", "image", "sandbox"), "ok")
    assert (answer.status_code, told["status"], told["wall"]) == (200, "ready", {})


def test_it_says_what_it_is(stack: Stack) -> None:
    told = asked(stack, "/v1/version").json()
    assert set(told) == {"version", "api", "guest_protocol"}
    assert told["api"] == "v1"


def test_a_missing_image_is_told_with_what_to_do(imageless: Stack) -> None:
    told = await_answer(imageless, 503)
    while "never-built" not in told["checks"]["image"]:
        told = await_answer(imageless, 503)
    assert told["status"] == "unavailable"
    assert "quickstart" in told["checks"]["image"]


def test_opening_without_the_image_is_a_503_and_leaves_nothing(imageless: Stack) -> None:
    await_answer(imageless, 503)
    answer = imageless.call("POST", "/create_session")
    assert answer.status_code == 503, answer.text
    assert imageless.containers() == imageless.directories() == []


def test_an_image_in_which_no_sandbox_starts_is_told() -> None:
    """As when another installation has built one of the same name."""
    broken = f"sandbox-server/broken:{os.getpid()}"
    made = docker(
        "create", "--entrypoint", "rm", f"sandbox-server/default:{IMAGE_TAG}", "/opt/sandbox/start.py"
    ).strip()
    docker("start", "--attach", made)
    docker("commit", made, broken)
    docker("rm", made)
    stack = Stack(SANDBOX_IMAGES=f"default={broken}", SANDBOX_POOL_MIN="1", SANDBOX_POOL_MAX="1")
    try:
        stack.start_keeper()
        stack.start_web()
        told = await_answer(stack, 503)
        while told["checks"]["keeper"] != "ok" or told["checks"]["sandbox"] == "ok":
            told = await_answer(stack, 503)
        assert "quickstart" in told["checks"]["sandbox"]
    finally:
        stack.remove()
        docker("rmi", broken)


def test_without_a_keeper_it_is_alive_but_not_ready(imageless: Stack) -> None:
    imageless.kill("keeper", signal.SIGKILL)
    deadline = time.monotonic() + 10
    while (answer := asked(imageless, "/readyz")).json()["checks"]["keeper"] == "ok":
        assert time.monotonic() < deadline, "it never noticed"
        time.sleep(0.1)
    assert answer.status_code == 503
    assert asked(imageless, "/healthz").status_code == 200
