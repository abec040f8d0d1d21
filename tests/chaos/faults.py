"""What is done to the server while callers use it. What was killed is started again, as an init system does.

`world.victims` are sessions that may end of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import requests
from callers import World

Fault = Callable[[World, random.Random], None]

_READY_SECONDS = 60.0


def the_web_is_killed(world: World, _: random.Random) -> None:
    with _cutting(world):
        world.stack.kill("web", signal.SIGKILL)
        world.stack.start_web()
        _await_web(world)


def a_worker_is_killed(world: World, chance: random.Random) -> None:
    master = world.stack.processes["web"].pid
    with _cutting(world):
        workers = Path(f"/proc/{master}/task/{master}/children").read_text().split()
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(chance.choice(workers)), signal.SIGKILL)
        _await_web(world)


def the_keeper_is_killed(world: World, chance: random.Random) -> None:
    """And with it the reaper and the pool."""
    world.stack.kill("keeper", signal.SIGKILL)
    time.sleep(chance.uniform(0, 0.5))
    world.stack.start_keeper()
    world.stack.wait_ready()


def everything_is_killed(world: World, _: random.Random) -> None:
    """As when the machine loses its power, but for the containers."""
    with _cutting(world):
        world.stack.kill("keeper", signal.SIGKILL)
        world.stack.kill("web", signal.SIGKILL)
        world.stack.start_keeper()
        world.stack.start_web()
        world.stack.wait_ready()


def a_guest_is_killed(world: World, chance: random.Random) -> None:
    pid = int(_at_victim(world, chance, "inspect", "-f", "{{.State.Pid}}") or 0)
    with contextlib.suppress(ProcessLookupError):
        if pid:
            os.kill(pid, signal.SIGKILL)


def a_container_is_killed(world: World, chance: random.Random) -> None:
    _at_victim(world, chance, "kill")


def a_container_is_removed(world: World, chance: random.Random) -> None:
    _at_victim(world, chance, "rm", "-f")


def a_disk_is_filled(world: World, _: random.Random) -> None:
    result = _in_a_session_of_its_own(
        world, "head -c 1G /dev/zero > big; rm big; echo room > small && cat small"
    )
    if result is not None and (not result["disk_full"] or result["stdout"] != "room\n"):
        world.blame(f"a full disk was not told, or did not recover: {str(result)[:500]}")


def memory_is_exhausted(world: World, _: random.Random) -> None:
    result = _in_a_session_of_its_own(world, "x=$(head -c 2G /dev/zero | tr '\\0' x); echo $?", timeout=20)
    if result is not None and not (result["oom_killed"] or result["exit_code"] != 0):
        world.blame(f"memory without end: {str(result)[:500]}")


def processes_are_exhausted(world: World, _: random.Random) -> None:
    _in_a_session_of_its_own(world, "bomb() { bomb | bomb & }; bomb", timeout=3)


def connections_are_cut(world: World, chance: random.Random) -> None:
    """In the middle of a head, of a body, of an answer."""
    for session, key in list(world.live.items())[:4]:
        body = json.dumps({"command": "sleep 0.3; echo unheard", "shell": "cut"})
        head = f"POST /v1/sessions/{session}/execute HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        head += f"Authorization: Bearer {key}\r\n"
        whole = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", world.stack.port), 5) as one,
        ):
            one.sendall(whole[: chance.choice([len(head) // 2, len(whole) - 5, len(whole)])])
            time.sleep(chance.uniform(0, 0.2))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset


def the_store_has_no_room(world: World, chance: random.Random) -> None:
    """Its filesystem is full for a moment."""
    place = world.stack.dir / "state" / "store"
    if not os.path.ismount(place):
        return
    filler = place / "filler"
    try:
        subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=1M"], capture_output=True, timeout=60)
        time.sleep(chance.uniform(0.5, 1.5))
    finally:
        filler.unlink(missing_ok=True)


FAULTS: tuple[Fault, ...] = (
    the_web_is_killed,
    a_worker_is_killed,
    the_keeper_is_killed,
    everything_is_killed,
    a_guest_is_killed,
    a_container_is_killed,
    a_container_is_removed,
    a_disk_is_filled,
    memory_is_exhausted,
    processes_are_exhausted,
    connections_are_cut,
    the_store_has_no_room,
)


@contextlib.contextmanager
def _cutting(world: World) -> Iterator[None]:
    """Connections may break from now until a little after the block."""
    world.cuts.append((time.monotonic(), float("inf")))
    try:
        yield
    finally:
        world.cuts[-1] = (world.cuts[-1][0], time.monotonic())


def _await_web(world: World) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(requests.RequestException):
            if requests.get(world.stack.url + "/healthz", timeout=5).status_code == 200:
                return
        time.sleep(0.05)
    world.blame("the web did not come back")


def _victim(world: World, chance: random.Random) -> str | None:
    """The container of somebody's session, if there is one right now."""
    live = sorted(world.live)
    if not live:
        return None
    session = chance.choice(live)
    world.victims.add(session)
    return world.stack.container_of(session)


def _at_victim(world: World, chance: random.Random, *words: str) -> str:
    """What the engine says to it; that the container is gone already is fine."""
    container = _victim(world, chance)
    try:
        return _docker(world, *words, container) if container else ""
    except subprocess.CalledProcessError:
        return ""


def _docker(world: World, *words: str) -> str:
    host = world.stack.env.get("SANDBOX_DOCKER_HOST")
    command = ["docker", *(["-H", host] if host else []), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def _in_a_session_of_its_own(world: World, command: str, timeout: float = 30) -> dict[str, object] | None:
    """The result, if it could be had: the server is not at its best."""
    opened = world.stack.call("POST", "/v1/sessions", json={"memory": 128 << 20, "disk": 32 << 20})
    if opened.status_code != 201:
        return None
    path = f"/v1/sessions/{opened.json()['session_id']}"
    body = {"command": command, "timeout": timeout}
    answer = world.stack.call("POST", f"{path}/execute", json=body, timeout=timeout + 30)
    usable = world.stack.call("POST", f"{path}/execute", json={"command": "echo usable", "shell": None})
    if usable.status_code not in (200, 410):
        world.blame(f"after {command!r}: {usable.text[:300]}")
    world.stack.call("DELETE", path)
    return dict(answer.json()) if answer.status_code == 200 else None
