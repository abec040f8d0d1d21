"""What a session costs: opened to its first result, closed, and the memory it holds while idle.

Beside ours stand the engine alone with the same options, and a plain `docker run`. Only the ratios within
one run mean anything. Memory needs root, who may look into every process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import docker
import memory
import opening
import starting
import waking
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

OURS = "ours: create_session + execute"
ENGINE = "engine, same options: create, start, exec_run"
PLAIN = "docker run --network none IMAGE true"
COLD = "ours: create_session alone"
BARE = "engine: bare create + start"
_STAGES = (1, 50, 200)
_AT_ONCE = 4
_NEEDED_PER_SESSION = 24 << 20  # to be on the safe side: about twice what one takes
_SETTLE_SECONDS = 3.0

Cycle = Callable[[], tuple[float, float]]


@dataclass(frozen=True)
class Cost:
    """First result and close, in milliseconds."""

    opened: Figures
    closed: Figures


@dataclass(frozen=True)
class Held:
    """Bytes per idle session, when there are `sessions` of them."""

    sessions: int
    shim: float
    guest: float
    server: float
    engine: float

    @property
    def total(self) -> float:
        return self.shim + self.guest + self.server + self.engine


def our_cycle(stack: Stack) -> tuple[float, float]:
    began = time.perf_counter()
    session = open_session(stack)
    opened = time.perf_counter()
    stack.call("POST", "/cleanup", json={"session_id": session}).raise_for_status()
    return opened - began, time.perf_counter() - opened


def cold_cycle(stack: Stack) -> tuple[float, float]:
    """To the answer, without a command."""
    began = time.perf_counter()
    created = stack.call("POST", "/create_session")
    opened = time.perf_counter()
    created.raise_for_status()
    stack.call("POST", "/cleanup", json={"session_id": created.json()["session_id"]}).raise_for_status()
    return opened - began, time.perf_counter() - opened


def open_session(stack: Stack) -> str:
    """One that has run a command: its shell is there, too."""
    created = stack.call("POST", "/create_session")
    created.raise_for_status()
    session = str(created.json()["session_id"])
    result = stack.call("POST", "/execute", json={"session_id": session, "command": "true"})
    if result.status_code != 200 or result.json()["exit_code"] != 0:
        raise RuntimeError(f"the first command failed: {result.text[:300]}")
    return session


def engine_cycle(keeper: starting.Keeper) -> tuple[float, float]:
    """The keeper's own create call, and the engine's exec."""
    client = docker.from_env()
    began = time.perf_counter()
    sandbox = keeper.create().id
    client.containers.get(f"sandbox-{sandbox}").exec_run(["true"])
    opened = time.perf_counter()
    keeper.delete(sandbox)
    return opened - began, time.perf_counter() - opened


def warm_figures(rounds: int, settings: dict[str, str]) -> opening.Warm:
    """On a server of its own, with a pool."""
    pool = {"SANDBOX_POOL_MIN": str(opening.POOL), "SANDBOX_POOL_MAX": str(opening.POOL)}
    with our_server(**pool, **settings) as stack:
        return opening.measure_warm(stack, rounds)


def measure_cycles(cycles: dict[str, Cycle], rounds: int) -> tuple[dict[str, Cost], dict[str, str]]:
    """In turns. One that cannot run here is left out, with the reason."""
    opened: dict[str, list[float]] = {name: [] for name in cycles}
    closed: dict[str, list[float]] = {name: [] for name in cycles}
    missing: dict[str, str] = {}
    for number in range(rounds + 1):  # the first round warms up
        say(f"open and close: round {number} of {rounds}")
        for name, cycle in cycles.items():
            try:
                seconds = cycle() if name not in missing else None
            except subprocess.CalledProcessError as exc:
                missing[name] = " ".join(exc.stderr.decode(errors="replace").split())[:200]
                continue
            if seconds and number:
                opened[name].append(seconds[0] * 1000)
                closed[name].append(seconds[1] * 1000)
    found = {
        name: Cost(Figures.of(opened[name]), Figures.of(closed[name])) for name in cycles if opened[name]
    }
    return found, missing


def measure_memory(stack: Stack, stages: list[int]) -> Iterator[Held]:
    """Sessions are added from stage to stage; growth is told against the server without any."""
    groups = [process.pid for process in stack.processes.values()]
    stack.call("GET", "/v1/sessions").raise_for_status()
    before = memory.look([], groups)
    live = 0
    for stage in stages:
        if memory.available() < (stage - live) * _NEEDED_PER_SESSION:
            say(f"not enough memory free for {stage} sessions")
            return
        say(f"memory: opening {stage - live} sessions, {stage} in all")
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda _: open_session(stack), range(stage - live)))
        live = stage
        time.sleep(_SETTLE_SECONDS)
        now = memory.look(stack.containers(), groups)
        yield Held(
            sessions=stage,
            shim=now.shims / stage,
            guest=now.guests / stage,
            server=(now.server - before.server) / stage,
            engine=(now.engine - before.engine) / stage,
        )


def show_cycles(found: dict[str, Cost], missing: dict[str, str]) -> None:
    heads = ["open to first result, close", "first p50 ms", "p95 ms", "x ours", "close p50 ms", "p95 ms"]
    rows = [
        [
            name,
            f"{cost.opened.p50:.0f}",
            f"{cost.opened.p95:.0f}",
            f"{cost.opened.p50 / found[OURS].opened.p50:.2f}",
            f"{cost.closed.p50:.0f}",
            f"{cost.closed.p95:.0f}",
        ]
        for name, cost in found.items()
    ]
    print_table("Opening and closing, one at a time", heads, rows)
    for name, reason in missing.items():
        print(f"{name} is not in the table: {reason}")


def show_memory(found: list[Held]) -> None:
    heads = ["idle sessions", "shim PSS", "guest PSS", "server's share", "engine's share", "total"]
    rows = [
        [
            str(held.sessions),
            *(
                f"{part / 2**20:.2f}"
                for part in (held.shim, held.guest, held.server, held.engine, held.total)
            ),
        ]
        for held in found
    ]
    print_table("Memory per idle session, MiB", heads, rows)
    print("server's share: growth of keeper and web (RSS); engine's share: of dockerd and containerd (RSS)")


def show_warm(warm: opening.Warm) -> None:
    names = {
        "no_op": "no-op Flask route",
        "create": "create_session",
        "first": "first command",
        "next": "next command",
    }
    rows = []
    for name, label in names.items():
        figures = getattr(warm, name)
        ratio = figures.p50 / warm.no_op.p50
        rows.append([label, f"{figures.p50:.2f}", f"{figures.p95:.2f}", f"{ratio:.1f}", str(figures.samples)])
    print_table("From a pool of warm sandboxes", ["", "p50 ms", "p95 ms", "x no-op", "samples"], rows)


def show_targets(targets: list[opening.Target]) -> None:
    rows = [
        [one.what, f"{one.found:.2f}", f"{one.limit:.2f}", "met" if one.met else "MISSED"] for one in targets
    ]
    print_table("Targets", ["target", "found", "limit", ""], rows)


def stages_up_to(most: int) -> list[int]:
    return sorted({min(stage, most) for stage in _STAGES})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few turns: shows that it works")
    parser.add_argument("--sessions", type=int, default=_STAGES[-1], metavar="N", help="most idle sessions")
    parser.add_argument("--runtime", metavar="NAME", help="an OCI runtime that the engine knows, for all")
    parser.add_argument(
        "--runtimes", metavar="NAMES", help="compare cold starts alone: such as runc,crun, side by side"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    arguments = parser.parse_args()
    if arguments.sessions < 1:
        parser.error("--sessions must be at least 1")
    names = arguments.runtimes or arguments.runtime
    try:
        runtimes = starting.chosen(names.split(",") if names else [])
    except ValueError as exc:
        parser.error(str(exc))
    machine = machine_facts()
    print_machine(machine)
    with tidy() as things:
        if arguments.runtimes:
            found = compare_runtimes(runtimes, arguments.quick)
        else:
            most = min(arguments.sessions, 2) if arguments.quick else arguments.sessions
            found = measure_all(things, runtimes[0], arguments.quick, most)
    write_json(arguments.json, {"machine": machine, **found})


def compare_runtimes(runtimes: list[str], quick: bool) -> dict[str, object]:
    starts = starting.measure(runtimes, 1 if quick else 15)
    starting.show(starts)
    targets = starting.judge(starts)
    show_targets(targets)
    return {"starts": _plain(starts), "targets": [{**asdict(one), "met": one.met} for one in targets]}


def measure_all(things: contextlib.ExitStack, runtime: str, quick: bool, most: int) -> dict[str, object]:
    """Everything, with one OCI runtime; without a pool where there can be none."""
    setting, has_pool = {"SANDBOX_OCI_RUNTIME": runtime}, starting.has_pool(runtime)
    warm = warm_figures(2 if quick else 12, setting) if has_pool else None
    if warm is not None:
        show_warm(warm)
    stack = things.enter_context(our_server(SANDBOX_SESSIONS_MAX="4000", **setting))
    keeper = things.enter_context(starting.keeper_alone(runtime))
    cycles: dict[str, Cycle] = {
        OURS: lambda: our_cycle(stack),
        COLD: lambda: cold_cycle(stack),
        BARE: opening.bare_cycle(runtime),
        ENGINE: lambda: engine_cycle(keeper),
        PLAIN: lambda: starting.plain_run(runtime),
    }
    costs, missing = measure_cycles(cycles, 1 if quick else 15)
    show_cycles(costs, missing)
    starts = starting.measure([runtime], 1 if quick else 15)
    starting.show(starts)
    targets = opening.judge_warm(warm) if warm is not None else []
    targets += opening.judge_cold(costs[COLD].opened, costs[BARE].opened) + starting.judge(starts)
    show_targets(targets)
    woken = waking.measure(stack, 1 if quick else 15, runtime, has_pool)
    waking.show(woken)
    held = list(measure_memory(stack, stages_up_to(most)))
    show_memory(held)
    if os.geteuid() != 0:
        print("not root: what other users' processes hold could not be read")
    return {
        "runtime": runtime,
        "warm": asdict(warm) if warm is not None else {},
        "targets": [{**asdict(one), "met": one.met} for one in targets],
        "starts": _plain(starts),
        "cycles": {name: asdict(cost) for name, cost in costs.items()},
        "missing": missing,
        "waking": {name: asdict(figures) for name, figures in woken.items()},
        "memory": [asdict(one) for one in held],
    }


def _plain(starts: dict[str, dict[str, Figures]]) -> dict[str, object]:
    return {name: {way: asdict(one) for way, one in ways.items()} for name, ways in starts.items()}


if __name__ == "__main__":
    main()
