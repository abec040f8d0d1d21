"""The server in the machine, driven from outside as tests drive a server beside them."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass
from typing import Any

import requests
from stack import Stack

from tests.hosts.vm.machine import HTTP, Machine

STATE = "/var/lib/sandbox-server"
SLOW_SECONDS = 300  # for one answer of an emulated machine
CONTAINER_OF = """
import sqlite3, sys
store = sqlite3.connect("file:{state}/store/store.db?mode=ro", uri=True)
print("sandbox-" + store.execute("SELECT sandbox FROM sessions WHERE id = ?", sys.argv[1:]).fetchone()[0])
"""


class Installed(Stack):
    """An installation in the machine, from `checkout`, with the environment of the file `settings`."""

    def __init__(self, machine: Machine, checkout: str, settings: str, key: str) -> None:
        self.machine = machine
        self.checkout = checkout
        self.settings = settings
        self.key = key
        self.url = f"http://127.0.0.1:{machine.ports[HTTP]}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def ctl(self, *args: str, seconds: float = SLOW_SECONDS) -> str:
        environment = f"cd {self.checkout}; set -a; . {self.settings}; set +a"
        return self.machine.run(f"{environment}; .venv/bin/sandboxctl {shlex.join(args)}", seconds)

    def call(self, method: str, path: str, key: str | None = None, **options: Any) -> requests.Response:
        return super().call(method, path, key, **{"timeout": SLOW_SECONDS, **options})

    def client(self, **options: Any) -> Any:
        return super().client(**{"read_timeout": SLOW_SECONDS, **options})

    @property
    def instance(self) -> str:
        return self.machine.read(f"{STATE}/instance").split()[0]

    def log(self, name: str) -> str:
        return self.machine.logs()

    def docker(self, *words: str) -> str:
        return self.machine.run(shlex.join(["docker", *words])).strip()

    def container_of(self, session_id: str) -> str:
        script = CONTAINER_OF.format(state=STATE)
        return self.machine.run(f"python3 -c {shlex.quote(script)} {session_id}").strip()

    def group_of(self, session_id: str) -> Group:
        """The control group of the sandbox, as its first process names it."""
        pid = self.docker("inspect", "-f", "{{.State.Pid}}", self.container_of(session_id))
        return Group(self.machine, "/sys/fs/cgroup" + self.machine.read(f"/proc/{pid}/cgroup").split("::")[1])

    def wait_ready(self) -> None:
        self.machine.until(f"curl -fsS http://127.0.0.1:{HTTP}/readyz", SLOW_SECONDS)

    def wait_without_leaks(self, seconds: float = SLOW_SECONDS) -> None:
        super().wait_without_leaks(seconds)


@dataclass(frozen=True)
class Group:
    """A control group of version 2."""

    machine: Machine
    path: str

    def read(self, name: str) -> str:
        return self.machine.read(f"{self.path}/{name}")

    def number(self, name: str) -> int:
        return int(self.read(name))

    def write(self, name: str, value: str) -> None:
        self.machine.write(f"{self.path}/{name}", value)

    def table(self, name: str) -> dict[str, int]:
        """Files such as cpu.stat: a name and a number in each line."""
        return {key: int(value) for key, value in (line.split() for line in self.read(name).splitlines())}

    def stalled(self, resource: str) -> int:
        """Microseconds in which something waited for it: the pressure stall information."""
        return int(self.read(f"{resource}.pressure").split("total=")[1].split()[0])
