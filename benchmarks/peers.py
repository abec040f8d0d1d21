"""Peers from PyPI, in a throw-away environment of their own. One that cannot run here says why."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

from common import free_port, process, say
from wire import Connection, Request, Unexpected

_INSTALL_SECONDS = 600
_LLM_SANDBOX = """
import sys
from llm_sandbox import SandboxSession
session = SandboxSession(lang="python", container_id=sys.argv[1], skip_environment_setup=True)
session.open()
print("open", flush=True)
for _ in sys.stdin:
    result = session.execute_command("true")
    print(result.exit_code, flush=True)
"""


class CannotRun(Exception):
    """The peer cannot be measured here; the message says why."""


@contextlib.contextmanager
def environment() -> Iterator[Path]:
    """An empty virtual environment, gone at the end."""
    with tempfile.TemporaryDirectory(prefix="sandbox-benchmark-peers-") as name:
        venv.create(name, with_pip=True)
        yield Path(name)


def install(place: Path, requirement: str) -> str:
    """The version that PyPI gave."""
    say(f"installing {requirement} ...")
    python = str(place / "bin" / "python")
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", requirement],
        capture_output=True,
        text=True,
        timeout=_INSTALL_SECONDS,
    )
    if done.returncode:
        raise CannotRun(f"does not install: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    name = requirement.partition("[")[0]
    asked = f"from importlib.metadata import version; print(version({name!r}))"
    return subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()


@contextlib.contextmanager
def llm_sandbox(place: Path, container: str) -> Iterator[Callable[[], None]]:
    """Its session on a container that runs already; `execute_command` each time, asked over a pipe."""
    with (place / "llm-sandbox.log").open("w") as log:
        child = subprocess.Popen(
            [str(place / "bin" / "python"), "-c", _LLM_SANDBOX, container],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    assert child.stdin is not None and child.stdout is not None
    asks, answers = child.stdin, child.stdout

    def once() -> None:
        asks.write("\n")
        asks.flush()
        if answers.readline().strip() != "0":
            raise CannotRun("the command failed")

    try:
        if answers.readline().strip() != "open":
            words = (place / "llm-sandbox.log").read_text().strip().splitlines() or ["no message"]
            raise CannotRun(f"the session did not open: {words[-1]}")
        yield once
    finally:
        asks.close()
        answers.close()
        child.kill()
        child.wait(30)


@contextlib.contextmanager
def swe_rex(place: Path) -> Iterator[dict[str, Callable[[], None]]]:
    """Its server as a plain process on this host, without any container: that flatters it."""
    port = free_port()
    command = [str(place / "bin" / "swerex-remote"), "--host", "127.0.0.1", "--port", str(port)]
    with process("swerex-remote", [*command, "--auth-token", "benchmark"], port, cwd=place):
        connection = Connection(port)

        def asking(path: str, body: dict[str, object]) -> Callable[[], None]:
            raw = Request(port, "POST", path, {"X-API-Key": "benchmark"}, body).as_bytes()

            def once() -> None:
                try:
                    answer = json.loads(connection.ask(raw))
                except Unexpected as exc:
                    raise CannotRun(" ".join(str(exc).split())[-200:]) from exc
                if answer.get("exit_code", 0) != 0:
                    raise CannotRun("the command failed")

            return once

        asking("/create_session", {"session": "default", "session_type": "bash"})()
        yield {
            "execute": asking("/execute", {"command": ["true"]}),
            "run_in_session": asking("/run_in_session", {"command": "true", "action_type": "bash"}),
        }
