"""What waking a session costs, to its first result: paused, cold with a warm sandbox waiting, cold without.

Beside ours stand the engine's own ways: unpause and exec, start of a stopped container and exec.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from common import Figures, Stack, our_server, plain_containers, print_table, say
from docker.models.containers import Container

HOT = "ours: hot, execute"
PAUSED = "ours: paused, execute"
WARM = "ours: cold, a warm sandbox waits, execute"
COLD = "ours: cold, execute"
UNPAUSE = "engine: unpause, exec_run"
START = "engine: start, exec_run"
_POOL_SECONDS = 60.0

Prepared = tuple[Callable[[], None], Callable[[], None]]  # puts to sleep, and wakes


def measure(stack: Stack, rounds: int, oci_runtime: str, has_pool: bool) -> dict[str, Figures]:
    """In turns; only waking is timed."""
    pool = {"SANDBOX_POOL_MIN": "2", "SANDBOX_POOL_MAX": "2", "SANDBOX_OCI_RUNTIME": oci_runtime}
    with ExitStack() as things:
        ways = {
            HOT: things.enter_context(_session(stack, None)),
            PAUSED: things.enter_context(_session(stack, {})),
            COLD: things.enter_context(_session(stack, {"cold": True})),
        }
        if has_pool:
            pooled = things.enter_context(our_server(**pool))
            ways[WARM] = things.enter_context(_session(pooled, {"cold": True}, waiting=2))
        paused, stopped = things.enter_context(plain_containers(2, oci_runtime))
        ways[UNPAUSE] = paused.pause, lambda: _run(paused, paused.unpause)
        ways[START] = lambda: stopped.stop(timeout=0), lambda: _run(stopped, stopped.start)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(rounds + 1):  # the first round warms up
            say(f"waking: round {number} of {rounds}")
            for name, (put_to_sleep, wake) in ways.items():
                put_to_sleep()
                began = time.perf_counter()
                wake()
                if number:
                    taken[name].append((time.perf_counter() - began) * 1000)
    return {name: Figures.of(figures) for name, figures in taken.items()}


@contextmanager
def _session(stack: Stack, pause: dict[str, bool] | None, waiting: int = 0) -> Iterator[Prepared]:
    created = stack.call("POST", "/create_session")
    created.raise_for_status()
    at = f"/v1/sessions/{created.json()['session_id']}"

    def put_to_sleep() -> None:
        if pause is not None:
            stack.call("POST", f"{at}/pause", json=pause).raise_for_status()
        deadline = time.monotonic() + _POOL_SECONDS
        while len(stack.containers()) < waiting and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.5 if waiting else 0)  # its container is there; its guest soon is

    def wake() -> None:
        stack.call("POST", f"{at}/execute", json={"command": "true"}).raise_for_status()

    wake()
    yield put_to_sleep, wake
    stack.call("DELETE", at)


def _run(container: Container, wake: Callable[[], None]) -> None:
    wake()
    container.exec_run(["true"])


def show(found: dict[str, Figures]) -> None:
    rows = [
        [name, f"{one.p50:.1f}", f"{one.p95:.1f}", f"{one.p50 / found[PAUSED].p50:.2f}"]
        for name, one in found.items()
    ]
    print_table("Waking to the first result", ["way", "p50 ms", "p95 ms", "x ours, paused"], rows)
