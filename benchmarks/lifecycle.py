"""What a session costs: opened to its first result, closed, and the memory it holds while idle.

Beside ours stand the engine alone with the same options, and a plain `docker run`. Only the ratios within
one run mean anything. Memory needs root, who may look into every process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import docker
import memory
from common import (
    IMAGE,
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

from server import config as configuration
from server import instance as installation
from server.keeper.runtime import Spec
from server.keeper.runtime.docker import DockerRuntime
from server.keeper.storage import Storage

OURS = "ours: create_session + execute"
ENGINE = "engine, same options: create, start, exec_run"
PLAIN = "docker run --network none IMAGE true"
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


def open_session(stack: Stack) -> str:
    """One that has run a command: its shell is there, too."""
    created = stack.call("POST", "/create_session")
    created.raise_for_status()
    session = str(created.json()["session_id"])
    result = stack.call("POST", "/execute", json={"session_id": session, "command": "true"})
    if result.status_code != 200 or result.json()["exit_code"] != 0:
        raise RuntimeError(f"the first command failed: {result.text[:300]}")
    return session


@contextlib.contextmanager
def engine_cycle() -> Iterator[Cycle]:
    """The keeper's own create call without the rest of us: no store, no HTTP, and the engine's exec."""
    config = configuration.load({})
    owner = installation.web_owner(config)
    client = docker.from_env()
    runtime = DockerRuntime(config, f"benchmark-{os.getpid()}", owner.gid)
    with tempfile.TemporaryDirectory(prefix="sbx-benchmark-") as place:
        storage = Storage(Path(place), owner)
        made: list[str] = []

        def cycle() -> tuple[float, float]:
            sandbox = secrets.token_hex(16)
            made.append(sandbox)
            began = time.perf_counter()
            kept = storage.create(sandbox, 20000, b"benchmark", 1)
            spec = Spec(
                sandbox,
                IMAGE,
                20000,
                config.memory,
                config.cpus,
                kept.run_dir,
                kept.workspace,
                kept.cpus_online,
            )
            runtime.create(spec)
            client.containers.get(f"sandbox-{sandbox}").exec_run(["true"])
            opened = time.perf_counter()
            runtime.delete(sandbox)
            return opened - began, time.perf_counter() - opened

        try:
            yield cycle
        finally:
            for sandbox in made:
                runtime.delete(sandbox)


def plain_cycle() -> tuple[float, float]:
    name = f"benchmark-{secrets.token_hex(8)}"
    began = time.perf_counter()
    try:
        _docker("run", "--name", name, "--network", "none", "--entrypoint", "true", IMAGE)
        opened = time.perf_counter()
    finally:
        _docker("rm", "--force", name)
    return opened - began, time.perf_counter() - opened


def _docker(*words: str) -> None:
    subprocess.run(["docker", *words], check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)


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


def stages_up_to(most: int) -> list[int]:
    return sorted({min(stage, most) for stage in _STAGES})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few turns: shows that it works")
    parser.add_argument("--sessions", type=int, default=_STAGES[-1], metavar="N", help="most idle sessions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    arguments = parser.parse_args()
    if arguments.sessions < 1:
        parser.error("--sessions must be at least 1")
    most = min(arguments.sessions, 2) if arguments.quick else arguments.sessions
    machine = machine_facts()
    print_machine(machine)
    with tidy() as things:
        stack = things.enter_context(our_server(SANDBOX_SESSIONS_MAX="4000"))
        engine = things.enter_context(engine_cycle())
        cycles = {OURS: lambda: our_cycle(stack), ENGINE: engine, PLAIN: plain_cycle}
        costs, missing = measure_cycles(cycles, 1 if arguments.quick else 15)
        show_cycles(costs, missing)
        held = list(measure_memory(stack, stages_up_to(most)))
        show_memory(held)
        if os.geteuid() != 0:
            print("not root: what other users' processes hold could not be read")
    found = {
        "machine": machine,
        "cycles": {name: asdict(cost) for name, cost in costs.items()},
        "missing": missing,
        "memory": [asdict(one) for one in held],
    }
    write_json(arguments.json, found)


if __name__ == "__main__":
    main()
