"""What opening costs: from the pool to the answer, and cold against a bare create and start.

In turns with a no-op Flask route, in one run: only ratios mean anything.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import docker
from common import IMAGE, Figures, Stack, say
from contenders import no_op
from wire import Connection, Request

POOL = 8
_OPENED = 6  # of them in each round: the filler is not to be met
_FULL_SECONDS = 120.0
_SETTLE_SECONDS = 1.0


@dataclass(frozen=True)
class Target:
    what: str
    found: float
    limit: float

    @property
    def met(self) -> bool:
        return self.found <= self.limit


@dataclass(frozen=True)
class Warm:
    """Milliseconds: a no-op route, the answer to create_session, the first command and the next."""

    no_op: Figures
    create: Figures
    first: Figures
    next: Figures


def measure_warm(stack: Stack, rounds: int) -> Warm:
    """`stack` has a pool of POOL. It is full before each round."""
    headers = {"Authorization": f"Bearer {stack.key}"}
    create = Request(stack.port, "POST", "/create_session", headers, {}).as_bytes()
    samples: dict[str, list[float]] = {"no_op": [], "create": [], "first": [], "next": []}
    with no_op(stack) as port:
        nothing, ours = Connection(port), Connection(stack.port)
        nothing_asked = Request(port, "GET", "/", {}).as_bytes()
        for number in range(rounds):
            say(f"warm: round {number + 1} of {rounds}")
            _await_pool(stack)
            sessions = []
            for _ in range(_OPENED):
                # One of each in turn: several in a row would find a process that is wide awake.
                samples["no_op"].append(_timed(nothing, nothing_asked)[0])
                spent, answer = _timed(ours, create)
                sessions.append(str(json.loads(answer)["session_id"]))
                body = {"session_id": sessions[-1], "command": "true"}
                execute = Request(stack.port, "POST", "/execute", headers, body).as_bytes()
                samples["create"].append(spent)
                samples["first"].append(_timed(ours, execute)[0])
                samples["next"].append(_timed(ours, execute)[0])
            for session in sessions:
                stack.call("POST", "/cleanup", json={"session_id": session}).raise_for_status()
    return Warm(**{name: Figures.of(values) for name, values in samples.items()})


def _timed(connection: Connection, request: bytes) -> tuple[float, bytes]:
    began = time.perf_counter()
    answer = connection.ask(request)
    return (time.perf_counter() - began) * 1000, answer


def _await_pool(stack: Stack) -> None:
    deadline = time.monotonic() + _FULL_SECONDS
    while len(stack.containers()) != POOL:
        if time.monotonic() > deadline:
            raise RuntimeError("the pool does not fill")
        time.sleep(0.1)
    time.sleep(_SETTLE_SECONDS)


def bare_cycle(runtime: str | None) -> Callable[[], tuple[float, float]]:
    """The engine's floor: create and start, with limits and without network, of a program that waits."""
    client = docker.from_env().api

    def cycle() -> tuple[float, float]:
        options = {"network_mode": "none", "mem_limit": "512m", "nano_cpus": 10**9}
        limits = client.create_host_config(**options, **({"runtime": runtime} if runtime else {}))
        name = f"benchmark-{secrets.token_hex(8)}"
        began = time.perf_counter()
        try:
            made = client.create_container(
                IMAGE, ["infinity"], entrypoint="sleep", host_config=limits, name=name
            )
            client.start(made["Id"])
            opened = time.perf_counter()
        finally:
            with contextlib.suppress(docker.errors.NotFound):
                client.remove_container(name, force=True)
        return opened - began, time.perf_counter() - opened

    return cycle


def judge_warm(warm: Warm) -> list[Target]:
    return [
        Target(
            "create_session from the pool, p50 in ms: at most 3x no-op Flask + 3 ms",
            warm.create.p50,
            3 * warm.no_op.p50 + 3,
        ),
        Target(
            "first command after it, p50 in ms: at most 1.25x the next one + 0.5 ms",
            warm.first.p50,
            1.25 * warm.next.p50 + 0.5,
        ),
    ]


def judge_cold(ours: Figures, bare: Figures) -> list[Target]:
    what = "create_session without a pool, p50 in ms: at most 1.1x a bare create + start"
    return [Target(what, ours.p50, 1.1 * bare.p50)]
