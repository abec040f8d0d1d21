"""How many idle sessions fit on this machine: hot, paused and cold, and what an active one notices of them.

Sessions are added in stages; at each, commands of one active session are timed and what is left of the host's
memory is told. It goes on until there are as many as asked for, or something says no: that is what bounds it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import memory
from common import (
    Figures,
    Stack,
    machine_facts,
    our_server,
    print_machine,
    print_table,
    say,
    tidy,
    write_json,
)
from wire import Connection, Request

_AT_ONCE = 4
_CALLS = 300
_SETTLE_SECONDS = 3.0
_RESERVE = 1 << 30  # of memory: below it nobody is helped by another session
_SETTINGS = {
    "SANDBOX_SESSIONS_MAX": "10000",
    "SANDBOX_DISK": "32m",
    "SANDBOX_DISK_OVERCOMMIT": "1000",
    "SANDBOX_LEASE": "86400",
}
SLEEP = {"paused": {}, "cold": {"cold": True}}


@dataclass(frozen=True)
class Stage:
    """So many idle sessions of a kind; bytes that each takes; milliseconds of an active one's command."""

    kind: str
    sessions: int
    each: float
    available: int
    execute: Figures
    opened_each: float


class Full(Exception):
    """No more fit. The message says what said so."""


def open_idle(stack: Stack, kind: str) -> None:
    if memory.available() < _RESERVE:
        raise Full(f"memory: {memory.available() >> 20} MiB are left")
    created = stack.call("POST", "/create_session", timeout=120)
    if created.status_code != 200:
        raise Full(created.json()["detail"])
    session = created.json()["session_id"]
    ran = stack.call("POST", "/execute", json={"session_id": session, "command": "x=1"}, timeout=120)
    if ran.status_code != 200:
        raise Full(ran.json()["detail"])
    if kind in SLEEP:
        slept = stack.call("POST", f"/v1/sessions/{session}/pause", json=SLEEP[kind], timeout=120)
        if slept.status_code != 200:
            raise Full(slept.text[:200])


def active(stack: Stack) -> bytes:
    session = stack.call("POST", "/create_session", timeout=120).json()["session_id"]
    headers = {"Authorization": f"Bearer {stack.key}"}
    body = {"session_id": session, "command": "true"}
    return Request(stack.port, "POST", "/execute", headers, body).as_bytes()


def measure(stack: Stack, kind: str, stages: list[int]) -> Iterator[Stage]:
    """Each stage has all the sessions of the ones before."""
    request = active(stack)
    connection = Connection(stack.port)
    before, live = memory.available(), 0
    for stage in stages:
        say(f"{kind}: {stage} sessions")
        began = time.perf_counter()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda _: open_idle(stack, kind), range(stage - live)))
        opened_each = (time.perf_counter() - began) * 1000 / max(1, stage - live)
        live = stage
        time.sleep(_SETTLE_SECONDS)
        milliseconds = []
        for _ in range(_CALLS):
            began = time.perf_counter()
            connection.ask(request)
            milliseconds.append((time.perf_counter() - began) * 1000)
        left = memory.available()
        yield Stage(kind, stage, (before - left) / stage, left, Figures.of(milliseconds), opened_each)


def fill(kind: str, most: int, found: list[Stage], bounds: dict[str, str]) -> None:
    """On a server of its own, so that one kind does not crowd out the next."""
    stages = sorted({min(most, stage) for stage in (1, most // 3 or 1, most)})
    with our_server(**_SETTINGS) as stack:
        try:
            for stage in measure(stack, kind, stages):
                found.append(stage)
                each = f"{stage.each / 2**20:.1f} MiB each"
                say(f"{stage.sessions} {kind}: {each}, p95 {stage.execute.p95:.2f} ms")
            bounds[kind] = "no bound was met"
        except Full as exc:
            bounds[kind] = str(exc)


def show(found: list[Stage], bounds: dict[str, str]) -> None:
    rows = [
        [
            f"{one.sessions} {one.kind}",
            f"{one.each / 2**20:.1f}",
            f"{one.available / 2**30:.1f}",
            f"{one.execute.p50:.2f}",
            f"{one.execute.p95:.2f}",
            f"{one.opened_each:.0f}",
        ]
        for one in found
    ]
    heads = ["idle sessions", "MiB each", "GiB left", "execute p50 ms", "p95 ms", "ms to add one"]
    print_table("Idle sessions, and one that is active", heads, rows)
    for kind, bound in bounds.items():
        print(f"{kind}: {bound}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few: shows that it works")
    parser.add_argument("--hot", type=int, default=300, help="hot sessions (0: none)")
    parser.add_argument("--paused", type=int, default=300, help="paused sessions")
    parser.add_argument("--cold", type=int, default=2000, help="cold sessions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    arguments = parser.parse_args()
    machine = machine_facts()
    print_machine(machine)
    found: list[Stage] = []
    bounds: dict[str, str] = {}
    with tidy():
        for kind in ("hot", "paused", "cold"):
            most = min(2, getattr(arguments, kind)) if arguments.quick else getattr(arguments, kind)
            if most:
                fill(kind, most, found, bounds)
    show(found, bounds)
    write_json(
        arguments.json, {"machine": machine, "stages": [asdict(one) for one in found], "bounds": bounds}
    )


if __name__ == "__main__":
    main()
