"""Is it alive, is it ready, what is it: told without a key, and truly."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from expect import eventually, problem
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


@pytest.fixture
def refused() -> Iterator[Stack]:
    """Its engine takes no container: the OCI runtime that the operator names is unknown there."""
    stack = Stack(SANDBOX_OCI_RUNTIME="never-installed")
    try:
        stack.start_keeper()
        stack.start_web()
        while await_answer(stack, 503)["checks"]["sandbox"] == "ok":
            time.sleep(0.1)
        yield stack
    finally:
        stack.remove()


def test_what_the_engine_says_is_for_the_operator_alone(refused: Stack) -> None:
    """A tenant, and who has no key, learn that it refuses; the operator also why."""
    answers = {key: refused.call("GET", "/readyz", key=key) for key in (refused.key, refused.admin_key)}
    assert {answer.status_code for answer in answers.values()} == {503}
    assert "words" not in answers[refused.key].json() and "words" not in asked(refused, "/readyz").json()
    assert "never-installed" not in answers[refused.key].text
    told = answers[refused.admin_key].json()
    assert (told["status"], told["checks"]["engine"]) == ("unavailable", "ok")
    assert "never-installed" in told["words"]["sandbox"]
    body = problem(refused.call("POST", "/create_session"), 503, "engine_unavailable")
    assert "never-installed" not in str(body)


def test_the_program_for_operators_says_why_no_sandbox_starts(refused: Stack) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        refused.ctl("status")
    assert failed.value.returncode == 3
    assert "unavailable" in failed.value.stdout and "never-installed" in failed.value.stdout


def test_a_keeper_waits_for_an_engine_that_is_not_there_yet_and_says_so(tmp_path: Path) -> None:
    """Callers are refused at once, the operator learns which address was tried, and it stops when told to."""
    missing = f"unix://{tmp_path}/docker.sock"
    stack = Stack(SANDBOX_DOCKER_HOST=missing)
    try:
        stack.start_keeper()
        stack.start_web()
        while (
            "engine" not in (told := await_answer(stack, 503))["checks"] or told["checks"]["engine"] == "ok"
        ):
            time.sleep(0.1)
        began = time.monotonic()
        problem(stack.call("POST", "/create_session"), 503, "engine_unavailable")
        assert time.monotonic() - began < 10
        words = stack.call("GET", "/readyz", key=stack.admin_key).json()["words"]["engine"]
        assert "No such file" in words or "Connection" in words
        os.symlink("/var/run/docker.sock", tmp_path / "docker.sock")
        stack.wait_ready()
        os.unlink(tmp_path / "docker.sock")
        stack.kill("keeper", signal.SIGTERM)
        stack.start_keeper()
        eventually(lambda: "asking the Docker Engine" in stack.log("keeper").rpartition("stopped")[2])
        began = time.monotonic()
        stack.kill("keeper", signal.SIGTERM)
        assert time.monotonic() - began < 10
    finally:
        os.path.lexists(tmp_path / "docker.sock") or os.symlink(
            "/var/run/docker.sock", tmp_path / "docker.sock"
        )
        stack.remove()


def test_a_wrong_key_is_refused_here_too(stack: Stack) -> None:
    """Or it would be a place to try keys at."""
    problem(stack.call("GET", "/readyz", key="e2b_" + "0" * 80), 401, "unauthorized")


def test_a_keeper_that_starts_is_not_ready_before_a_sandbox_ran() -> None:
    """From its first answer on: what it is doing, with 503, and 200 only once the self-check has run."""
    fresh = Stack()
    try:
        fresh.start_web()
        assert await_answer(fresh, 503)["checks"]["keeper"] != "ok"
        fresh.start_keeper()
        seen: list[tuple[int, str]] = []
        deadline = time.monotonic() + 60
        while not seen or seen[-1][0] != 200:
            assert time.monotonic() < deadline, seen
            answer = asked(fresh, "/readyz")
            seen.append((answer.status_code, answer.json()["status"]))
        assert {status for code, status in seen if code == 503} >= {"checking"}
        assert {status for code, status in seen if code == 200} == {"ready"}
    finally:
        fresh.remove()


def test_without_a_keeper_it_is_alive_but_not_ready(imageless: Stack) -> None:
    imageless.kill("keeper", signal.SIGKILL)
    deadline = time.monotonic() + 10
    while (answer := asked(imageless, "/readyz")).json()["checks"]["keeper"] == "ok":
        assert time.monotonic() < deadline, "it never noticed"
        time.sleep(0.1)
    assert answer.status_code == 503
    assert asked(imageless, "/healthz").status_code == 200
