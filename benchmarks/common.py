"""What both benchmarks share: a server of ours, plain containers, figures, tables and the machine's facts.

Everything started here is a context manager, so that it is gone at the end, after Ctrl-C too.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "client"), str(ROOT / "tests")]

from stack import IMAGE_TAG, Stack  # noqa: E402 - the tests' whole server; its folder is put on the path above

IMAGE = f"sandbox-server/default:{IMAGE_TAG}"
_STOP_SECONDS = 30
_CLOSE_SECONDS = 1800  # of a machine full of sandboxes


@dataclass(frozen=True)
class Figures:
    """What was measured of one thing, in milliseconds."""

    p50: float
    p95: float
    samples: int

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> Figures:
        ordered = sorted(milliseconds)
        return cls(statistics.median(ordered), ordered[math.ceil(0.95 * len(ordered)) - 1], len(ordered))


def say(text: str) -> None:
    """Progress: to stderr, so that stdout holds the tables alone."""
    print(text, file=sys.stderr, flush=True)


def print_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first column is text, the others are numbers."""
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    print(f"\n{title}\n")
    for row in (heads, ["-" * width for width in widths], *rows):
        first, *others = (
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *others]).rstrip(), flush=True)


def machine_facts() -> dict[str, str]:
    """By what a reader can compare with: the machine is named by facts, not by a label."""
    engine = docker.from_env().version()
    components = {part["Name"]: part["Version"] for part in engine.get("Components", [])}
    return {
        "cpus": str(len(os.sched_getaffinity(0))),
        "processor": _first_value("/proc/cpuinfo", "model name"),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "docker": engine["Version"],
        "containerd": components.get("containerd", "?"),
        "runc": components.get("runc", "?"),
        "load before": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _first_value(path: str, name: str) -> str:
    with contextlib.suppress(OSError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return "?"


def print_machine(facts: Mapping[str, str]) -> None:
    print("; ".join(f"{name}: {value}" for name, value in facts.items()), flush=True)


def write_json(path: Path | None, found: Mapping[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(found, indent=2) + "\n")


@contextlib.contextmanager
def tidy() -> Iterator[contextlib.ExitStack]:
    """Things that are undone at the end. A first Ctrl-C or SIGTERM begins with that, a second one waits."""

    def stop(*_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        with contextlib.ExitStack() as things:
            yield things
    except KeyboardInterrupt:
        sys.exit("stopped; everything was removed")


UNLIMITED = {
    f"SANDBOX_RATE_{kind}": "1000000/second" for kind in ("CREATE", "EXECUTE", "FILES", "READ", "ADDRESS")
}


@contextlib.contextmanager
def our_server(**settings: str) -> Iterator[Stack]:
    """Keeper and web with their own state. Load is no abuse here, so the rate limit is out of reach."""
    stack = Stack(**{**UNLIMITED, "SANDBOX_EXECUTIONS_MAX": "64", **settings})
    say(f"our server lives in {stack.dir}")
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()
        stack.ctl("close-all", seconds=_CLOSE_SECONDS)
        stack.ctl("unmount")
        shutil.rmtree(stack.dir, ignore_errors=True)


@contextlib.contextmanager
def process(
    name: str, command: Sequence[str], port: int, env: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> Iterator[None]:
    """A server that listens on `port` when the block begins, and is gone with its children after it."""
    child = subprocess.Popen(
        command,
        cwd=cwd,
        env={**_clean_environment(), **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        _await_port(name, child, port)
        yield
    finally:
        _stop_group(child)


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_")}


def _await_port(name: str, child: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if child.poll() is not None:
            assert child.stderr is not None
            words = child.stderr.read().decode(errors="replace").strip().splitlines() or ["no message"]
            raise RuntimeError(f"{name} ended at once: {words[-1]}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{name} did not listen within 30 seconds")


def _stop_group(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_STOP_SECONDS)
            break
    if child.stderr is not None:
        child.stderr.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def plain_containers(count: int, oci_runtime: str | None = None) -> Iterator[list[Container]]:
    """What small peers keep a session in: a limited container without network that sleeps."""
    client = docker.from_env()
    made: list[Container] = []
    try:
        for _ in range(count):
            made.append(
                client.containers.run(
                    IMAGE,
                    ["infinity"],
                    entrypoint="sleep",
                    detach=True,
                    network_mode="none",
                    runtime=oci_runtime,
                    mem_limit="512m",
                    nano_cpus=10**9,
                    user="20000:20000",
                    labels={"sandbox-server.benchmark": str(os.getpid())},
                )
            )
        yield made
    finally:
        for container in made:
            container.remove(force=True, v=True)
