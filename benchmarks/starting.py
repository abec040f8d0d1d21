"""What a cold start costs with each OCI runtime, side by side in one run: each against its own floor.

The floor is a bare create and start; beside it a `docker run`, the keeper's own create and start, and how
long after the start the guest answers, and takes commands.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import opening
from common import IMAGE, Figures, print_table, say

from server import config as configuration
from server import instance as installation
from server.guest import protocol
from server.guest_client import Binding, GuestClient, Sandbox
from server.keeper.appearance import wait_for_guest
from server.keeper.runtime import Spec
from server.keeper.runtime.docker import DockerRuntime
from server.keeper.runtime.facts import facts_of
from server.keeper.runtime.oci import identify
from server.keeper.storage import Storage

BARE = "bare create + start"
RUN = "docker run --network none IMAGE true"
OURS = "the keeper's create + start"
READY = "guest answers after the start"
BOUND = "guest takes commands after the start"
_READY_MS = 30.0
_READY_SECONDS = 30.0
_UID = 20000
_HOW = (
    "the engine does not know {missing} (it knows {known}): register it in /etc/docker/daemon.json "
    '({{"runtimes": {{"crun": {{"path": "/usr/bin/crun"}}}}}}) and restart it, or start one with '
    "dockerd --add-runtime crun=/usr/bin/crun, and name that in DOCKER_HOST"
)


class Keeper:
    """The keeper's own create call without the rest of us: no store, no HTTP."""

    def __init__(self, place: Path, oci_runtime: str) -> None:
        self._config = configuration.load({"SANDBOX_OCI_RUNTIME": oci_runtime})
        owner = installation.web_owner(self._config)
        self.runtime = DockerRuntime(self._config, f"benchmark-{os.getpid()}", owner.gid)
        self._storage = Storage(place, owner, None)
        self._guests = GuestClient(self._config.output_limit, self._config.executions_max)
        self._made: list[str] = []

    def create(self) -> Sandbox:
        sandbox, secret, config = secrets.token_hex(16), b"benchmark", self._config
        self._made.append(sandbox)
        kept = self._storage.create(sandbox, _UID, secret, 1, config.memory)
        paths = (kept.run_dir, kept.workspace, kept.data, kept.cpus_online, kept.machine)
        self.runtime.create(Spec(sandbox, IMAGE, _UID, config.memory, config.cpus, *paths))
        return Sandbox(sandbox, kept.address, secret)

    def await_answer(self, sandbox: Sandbox) -> None:
        """It is asked whether it is anybody's; that is the first thing that it is asked."""
        path = self._storage.socket_of(sandbox.id)
        assert path.name == protocol.SOCKET_NAME
        wait_for_guest(self.runtime, sandbox.id, path, _READY_SECONDS)
        self._guests.is_bound(sandbox)

    def bind(self, sandbox: Sandbox) -> None:
        """From then on it takes commands."""
        config = self._config
        limits = (config.processes, config.executions_max, config.output_limit, config.log_limit)
        binding = Binding(_UID, *limits, soft_disk=None, env={})
        self._guests.bind(sandbox, binding, time.monotonic() + _READY_SECONDS)
        self._guests.forget(sandbox.id)

    def delete(self, sandbox: str) -> None:
        self.runtime.delete(sandbox)
        self._storage.delete(sandbox)

    def delete_all(self) -> None:
        for sandbox in self._made:
            self.delete(sandbox)


@contextlib.contextmanager
def keeper_alone(oci_runtime: str) -> Iterator[Keeper]:
    with tempfile.TemporaryDirectory(prefix="sbx-benchmark-") as place:
        keeper = Keeper(Path(place), oci_runtime)
        try:
            yield keeper
        finally:
            keeper.delete_all()


def chosen(names: list[str]) -> list[str]:
    """As they were named, or the engine's default; says how to have the engine know one that it does not."""
    facts = facts_of(docker.from_env().info())
    missing = [name for name in names if name not in facts.runtimes]
    if missing:
        raise ValueError(_HOW.format(missing=", ".join(missing), known=", ".join(sorted(facts.runtimes))))
    return names or [facts.default_runtime]


def has_pool(oci_runtime: str) -> bool:
    """gVisor lets nothing be mounted into a running sandbox: there are no warm ones."""
    return not identify(oci_runtime, facts_of(docker.from_env().info())).is_gvisor


def plain_run(oci_runtime: str) -> tuple[float, float]:
    name = f"benchmark-{secrets.token_hex(8)}"
    began = time.perf_counter()
    words = ("--runtime", oci_runtime, "--name", name, "--network", "none", "--entrypoint", "true", IMAGE)
    try:
        _docker("run", *words)
        opened = time.perf_counter()
    finally:
        _docker("rm", "--force", name)
    return opened - began, time.perf_counter() - opened


def measure(oci_runtimes: list[str], rounds: int) -> dict[str, dict[str, Figures]]:
    """By runtime and way, in milliseconds, in turns. The first round warms up."""
    taken: dict[str, dict[str, list[float]]] = {name: {} for name in oci_runtimes}
    with contextlib.ExitStack() as things:
        ways = {
            name: _ways(name, things.enter_context(keeper_alone(name)), taken[name]) for name in oci_runtimes
        }
        for number in range(rounds + 1):
            say(f"cold start: round {number} of {rounds}")
            for name in oci_runtimes:
                for way in ways[name]:
                    way()
                if not number:
                    taken[name].clear()
    return {
        name: {way: Figures.of(figures) for way, figures in found.items()} for name, found in taken.items()
    }


def _ways(name: str, keeper: Keeper, taken: dict[str, list[float]]) -> list[Callable[[], None]]:
    bare = opening.bare_cycle(name)

    def note(way: str, seconds: float) -> None:
        taken.setdefault(way, []).append(seconds * 1000)

    def ours() -> None:
        began = time.perf_counter()
        sandbox = keeper.create()
        started = time.perf_counter()
        keeper.await_answer(sandbox)
        answered = time.perf_counter()
        keeper.bind(sandbox)
        bound = time.perf_counter()
        keeper.delete(sandbox.id)
        note(OURS, started - began)
        note(READY, answered - started)
        note(BOUND, bound - started)

    return [lambda: note(BARE, bare()[0]), lambda: note(RUN, plain_run(name)[0]), ours]


def show(found: dict[str, dict[str, Figures]]) -> None:
    rows = [
        [f"{name}: {way}", f"{one.p50:.1f}", f"{one.p95:.1f}", f"{one.p50 / ways[BARE].p50:.2f}"]
        for name, ways in found.items()
        for way, one in ways.items()
    ]
    print_table("Cold start by OCI runtime", ["", "p50 ms", "p95 ms", "x its own bare"], rows)


def judge(found: dict[str, dict[str, Figures]]) -> list[opening.Target]:
    what = f"{READY} of the container, p50 in ms"
    return [opening.Target(f"{name}: {what}", ways[READY].p50, _READY_MS) for name, ways in found.items()]


def _docker(*words: str) -> None:
    subprocess.run(["docker", *words], check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
