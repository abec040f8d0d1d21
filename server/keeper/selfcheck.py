"""Is the wall what we say it is? A throw-away sandbox is probed from inside and compared with a table.

An engine can accept an option and not enforce it (rootless, old kernels, foreign runtimes); only a look from
inside tells. Runs once at start; `/readyz` shows every difference.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from pathlib import Path

from server.config import Config
from server.errors import SandboxError
from server.guest_client import Command, GuestClient, GuestSilent
from server.keeper.runtime import RuntimeFailed
from server.keeper.sandboxes import Sandboxes, Wanted

_PROBE = (Path(__file__).parent / "probe.py").read_text()
_PROBE_SECONDS = 20.0

_log = logging.getLogger("sandbox.selfcheck")


def expected(config: Config) -> dict[str, object]:
    """What code in a sandbox of default size must find. The probe reports under the same names."""
    return {
        "uid is the session's own": True,
        "effective capabilities": 0,
        "no new privileges": 1,
        "seccomp mode": 2,
        "network interfaces": ["lo"],
        "root filesystem": "read-only",
        "memory limit": config.memory,
        "process limit of the container": config.container_processes,
        "process limit of the user": config.processes,
        "cpu quota": config.cpus,
        "open files": 4096,
        "core files": 0,
        "largest file": config.disk,
        "io_uring": "refused",
        "vsock": "refused",
        "new user namespace": "refused",
        "signal to the guest": "refused",
        "memory of the guest": "refused",
        "socket of the guest": "refused",
        "kernel symbols": "hidden",
    }


class SelfCheck:
    def __init__(self, config: Config, sandboxes: Sandboxes, guests: GuestClient) -> None:
        self._config = config
        self._sandboxes = sandboxes
        self._guests = guests
        self._differences: dict[str, str] | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def differences(self) -> dict[str, str] | None:
        """By name, what was found instead of what should be; None until the check has run."""
        return self._differences

    def _run(self) -> None:
        try:
            found = self._probe()
        except (RuntimeFailed, GuestSilent, SandboxError, ValueError) as exc:
            self._differences = {"self-check": f"could not run: {exc}"}
        else:
            self._differences = compare(expected(self._config), found)
        for name, difference in self._differences.items():
            _log.error("the wall differs: %s: %s", name, difference)

    def _probe(self) -> dict[str, object]:
        config = self._config
        wanted = Wanted("", config.default_image, config.memory, config.cpus, {})
        command = Command(["python3", "-c", _PROBE], _PROBE_SECONDS, shell=None)
        with self._sandboxes.trial(wanted) as sandbox:
            answer = self._guests.run(sandbox, secrets.token_hex(16), "", command)
        found = json.loads(answer.stdout.first)
        if not isinstance(found, dict):
            raise ValueError("the probe gave no table")
        return found


def compare(expected: dict[str, object], found: dict[str, object]) -> dict[str, str]:
    return {
        name: f"expected {value!r}, found {found.get(name)!r}"
        for name, value in expected.items()
        if found.get(name) != value
    }
