"""What going back and going apart cost: snapshot, fork, restore of a full workspace, and `docker commit`.

    .venv/bin/python benchmarks/snapshots.py

The peer's way keeps the same files in a container's own layer, commits it to an image and runs that.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import requests
from common import (
    IMAGE,
    Figures,
    machine_facts,
    our_server,
    print_machine,
    print_table,
    say,
    tidy,
    write_json,
)

_FILES = 64
_FILL = "mkdir -p {place}; for n in $(seq {files}); do head -c {size} /dev/urandom > {place}/$n; done; sync"
_COMMAND_SECONDS = 900
_CALL_SECONDS = 900


class Ours:
    """A session with a full workspace, over HTTP."""

    def __init__(self, url: str, key: str) -> None:
        self._url = url
        self._http = requests.Session()
        self._http.headers["Authorization"] = f"Bearer {key}"
        self.id = str(self.call("POST", "/create_session")["session_id"])

    def call(self, method: str, path: str, **body: Any) -> Any:
        answer = self._http.request(method, self._url + path, json=body or None, timeout=_CALL_SECONDS)
        answer.raise_for_status()
        return answer.json() if answer.content else {}

    def run(self, command: str, session: str | None = None) -> None:
        body = {"session_id": session or self.id, "command": command, "timeout": 600}
        assert self.call("POST", "/execute", **body)["exit_code"] == 0, command

    def snapshot(self) -> str:
        return str(self.call("POST", f"/v1/sessions/{self.id}/snapshots")["snapshot_id"])

    def fork_to_first_result(self) -> str:
        forked = str(self.call("POST", f"/v1/sessions/{self.id}/fork")["sessions"][0]["session_id"])
        self.run("true", forked)
        return forked

    def restore(self, snapshot: str) -> None:
        self.call("POST", f"/v1/sessions/{self.id}/restore", snapshot_id=snapshot)
        self.run("true")


@contextmanager
def committed(size: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """A container that holds the same files, and how it is committed. Its images are gone at the end."""
    images: list[str] = []
    label = f"sandbox-server.benchmark={os.getpid()}"
    start = ["run", "-d", "--label", label, "--network", "none", "--entrypoint", "sleep", IMAGE, "infinity"]
    name = docker(*start)

    def commit() -> str:
        images.append(docker("commit", name))
        return images[-1]

    try:
        docker(
            "exec",
            "-u",
            "0",
            name,
            "bash",
            "-c",
            _FILL.format(place="/files", files=_FILES, size=size // _FILES),
        )
        yield name, commit
    finally:
        for container in docker("ps", "-aq", "--filter", f"label={label}").split():
            docker("rm", "-f", container)
        for image in images:
            docker("rmi", "-f", image)


def docker(*args: str) -> str:
    command = ["docker", *args]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMMAND_SECONDS)
    return done.stdout.strip()


def run_to_first_result(image: str) -> None:
    label = f"sandbox-server.benchmark={os.getpid()}"
    start = ["run", "-d", "--label", label, "--network", "none", "--entrypoint", "sleep", image, "infinity"]
    docker("exec", docker(*start), "true")


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return (time.perf_counter() - began) * 1000, result


def measure(size: int, rounds: int, ours: Ours, commit: Callable[[], str]) -> dict[str, list[float]]:
    """In turns, so that noise meets all alike."""
    took: dict[str, list[float]] = {name: [] for name in _ROWS}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        milliseconds, snapshot = timed(ours.snapshot)
        took["ours: snapshot"].append(milliseconds)
        milliseconds, forked = timed(ours.fork_to_first_result)
        took["ours: fork to first result"].append(milliseconds)
        ours.call("DELETE", f"/v1/sessions/{forked}")
        ours.run("echo changed > files/1")
        took["ours: restore to first result"].append(
            timed(lambda snapshot=snapshot: ours.restore(snapshot))[0]
        )
        ours.call("DELETE", f"/v1/snapshots/{snapshot}")
        milliseconds, image = timed(commit)
        took["docker commit"].append(milliseconds)
        started = timed(lambda image=image: run_to_first_result(image))[0]
        took["docker commit + run to first result"].append(milliseconds + started)
    return took


_ROWS = (
    "ours: snapshot",
    "ours: fork to first result",
    "ours: restore to first result",
    "docker commit",
    "docker commit + run to first result",
)


def judged(found: dict[str, Figures]) -> dict[str, bool]:
    snapshot, fork = found["ours: snapshot"].p50, found["ours: fork to first result"].p50
    peer = found["docker commit + run to first result"].p50
    return {
        f"snapshot in at most 100 ms: {snapshot:.1f} ms": snapshot <= 100,
        f"snapshot {found['docker commit'].p50 / snapshot:.0f} times faster than docker commit": (
            snapshot < found["docker commit"].p50
        ),
        f"fork to first result {peer / fork:.0f} times faster than commit + run": fork < peer,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=1024, help="MiB in the workspace (default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=5, help="how often each is measured (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="a short run that shows only that it works")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    asked = parser.parse_args()
    size, rounds = (16 << 20, 2) if asked.quick else (asked.size << 20, asked.rounds)
    facts = machine_facts()
    print_machine(facts)
    settings = {
        "SANDBOX_DISK": str(2 * size + (64 << 20)),
        "SANDBOX_DISK_MAX": str(16 << 30),
        "SANDBOX_TENANT_DISK": str(64 << 30),
        "SANDBOX_STORAGE_SIZE": str(max(3 << 30, 3 * size)),
        "SANDBOX_POOL_MIN": "2",
        "SANDBOX_POOL_MAX": "2",
    }
    with tidy() as things:
        stack = things.enter_context(our_server(**settings))
        ours = Ours(stack.url, stack.key)
        say(f"filling both with {size >> 20} MiB")
        ours.run(_FILL.format(place="files", files=_FILES, size=size // _FILES))
        _, commit = things.enter_context(committed(size))
        os.sync()  # a snapshot writes out what is not on disk yet, and would be charged for it
        took = measure(size, rounds, ours, commit)
        ours.call("DELETE", f"/v1/sessions/{ours.id}")
    found = {name: Figures.of(values) for name, values in took.items()}
    rows = [[name, f"{one.p50:.1f}", f"{one.p95:.1f}"] for name, one in found.items()]
    print_table(f"A workspace of {size >> 20} MiB in {_FILES} files, ms", ["", "p50", "p95"], rows)
    targets = judged(found)
    print()
    for words, met in targets.items():
        print(f"{words}  {'met' if met else 'MISSED'}")
    figures = {name: asdict(one) for name, one in found.items()}
    write_json(asked.json, {"machine": facts, "bytes": size, "figures": figures, "targets": targets})


if __name__ == "__main__":
    main()
