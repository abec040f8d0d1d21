"""Who is measured, and how one command is asked of each. All stand ready at once, to be measured in turns."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import peers
from common import ROOT, Stack, free_port, our_server, plain_containers, process, say
from docker.models.containers import Container
from wire import Connection, Request

from server import config as configuration
from server import instance as installation
from server.guest_client import Command, GuestClient, Sandbox

OURS = "ours: /execute true (kept shell)"
OURS_ONE_OFF = 'ours: /execute ["true"] (one-off)'
NO_OP = "floor: no-op Flask route"
GUEST = "floor: guest socket alone"
EXEC_RUN = "exec_run behind Flask"
_WEB_WORKERS = "2"  # of every gunicorn here


@dataclass(frozen=True)
class Contender:
    name: str
    once: Callable[[], object]
    slow: bool = False


@dataclass
class Field:
    """Everybody who runs, the same again as requests for the load generator, and who could not and why."""

    contenders: list[Contender] = field(default_factory=list)
    requests: dict[str, list[Request]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def line_up(sessions: int, with_peers: bool) -> Iterator[Field]:
    found = Field()
    with contextlib.ExitStack() as things:
        say("starting our server, containers and the Flask applications ...")
        stack = things.enter_context(our_server(SANDBOX_WEB_WORKERS=_WEB_WORKERS))
        containers = things.enter_context(plain_containers(sessions))
        _add_ours(found, stack, sessions)
        _add_floor(found, things, stack)
        _add_docker(found, containers[0])
        _add_exec_run(found, things, containers)
        if with_peers:
            _add_peers(found, things, containers[0])
        yield found


def _add_ours(found: Field, stack: Stack, sessions: int) -> None:
    headers = {"Authorization": f"Bearer {stack.key}"}
    ids = []
    for _ in range(sessions):
        answer = stack.call("POST", "/create_session")
        answer.raise_for_status()
        ids.append(str(answer.json()["session_id"]))
    for name, command in ((OURS, "true"), (OURS_ONE_OFF, ["true"])):
        found.requests[name] = [
            Request(stack.port, "POST", "/execute", headers, {"session_id": session, "command": command})
            for session in ids
        ]
        found.contenders.append(Contender(name, _asking(found.requests[name][0])))
    found.contenders.append(Contender(GUEST, _guest_alone(stack, ids[0])))


def _asking(request: Request) -> Callable[[], object]:
    connection = Connection(request.port)
    raw = request.as_bytes()
    return lambda: connection.ask(raw)


def _guest_alone(stack: Stack, session: str) -> Callable[[], object]:
    """The session's guest asked directly, as a web worker does it."""
    config = configuration.load({name: value for name, value in stack.env.items() if name[:8] == "SANDBOX_"})
    with contextlib.closing(sqlite3.connect(config.store_path)) as store:
        query = "SELECT sandbox, address FROM sessions WHERE id = ?"
        sandbox, address = store.execute(query, (session,)).fetchone()
    guest = Sandbox(sandbox, address, installation.load(config).guest_secret(sandbox))
    client = GuestClient(config.output_limit, config.executions_max)
    command = Command("true", timeout=30)
    return lambda: client.run(guest, secrets.token_hex(16), "", command)


def _add_floor(found: Field, things: contextlib.ExitStack, stack: Stack) -> None:
    port = things.enter_context(no_op(stack))
    found.requests[NO_OP] = [Request(port, "GET", "/", {})]
    found.contenders.append(Contender(NO_OP, _asking(found.requests[NO_OP][0])))


@contextlib.contextmanager
def no_op(stack: Stack) -> Iterator[int]:
    """Where a route that does nothing is: under the very settings that our server has."""
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "-c", "deploy/gunicorn.conf.py", "apps.noop:app"]
    env = {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'benchmarks'}",
        "SANDBOX_STATE_DIR": stack.env["SANDBOX_STATE_DIR"],
        "SANDBOX_BIND": f"127.0.0.1:{port}",
        "SANDBOX_WEB_WORKERS": _WEB_WORKERS,
    }
    with process("no-op Flask", command, port, env):
        yield port


def _add_docker(found: Field, container: Container) -> None:
    command = ["docker", "exec", str(container.id), "true"]

    def by_cli() -> None:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)

    def by_sdk() -> None:
        if container.exec_run(["true"]).exit_code != 0:
            raise RuntimeError("exec_run failed")

    found.contenders.append(Contender("docker exec, command line", by_cli, slow=True))
    found.contenders.append(Contender("docker SDK, exec_run", by_sdk, slow=True))


def _add_exec_run(found: Field, things: contextlib.ExitStack, containers: list[Container]) -> None:
    """Threads, not gevent: the docker SDK blocks. As many threads as there are clients at most."""
    port = free_port()
    options = [
        "-w",
        _WEB_WORKERS,
        "-k",
        "gthread",
        "--threads",
        "32",
        "--keep-alive",
        "75",
        "--no-control-socket",
    ]
    command = [sys.executable, "-m", "gunicorn", *options, "-b", f"127.0.0.1:{port}", "apps.exec_run:app"]
    things.enter_context(process(EXEC_RUN, command, port, cwd=Path(__file__).parent))
    found.requests[EXEC_RUN] = [
        Request(port, "POST", "/execute", {}, {"session_id": container.id, "command": ["true"]})
        for container in containers
    ]
    found.contenders.append(Contender(EXEC_RUN, _asking(found.requests[EXEC_RUN][0]), slow=True))


def _add_peers(found: Field, things: contextlib.ExitStack, container: Container) -> None:
    place = things.enter_context(peers.environment())
    try:
        name = f"llm-sandbox {peers.install(place, 'llm-sandbox[docker]')}, execute_command"
        once = things.enter_context(peers.llm_sandbox(place, str(container.id)))
        once()
        found.contenders.append(Contender(name, once, slow=True))
    except (peers.CannotRun, OSError, subprocess.SubprocessError) as exc:
        found.missing["llm-sandbox"] = str(exc)
    try:
        name = f"SWE-ReX {peers.install(place, 'swe-rex')} (no container)"
        for verb, once in things.enter_context(peers.swe_rex(place)).items():
            once()
            found.contenders.append(Contender(f"{name}, {verb}", once, slow=True))
    except (peers.CannotRun, RuntimeError, OSError, subprocess.SubprocessError) as exc:
        found.missing["SWE-ReX"] = str(exc)
