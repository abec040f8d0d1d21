"""Is the wall what we say it is? A throw-away sandbox is probed from inside and compared with a table.

An engine can accept an option and not enforce it (rootless, old kernels, foreign runtimes); only a look from
inside tells. Runs at start until it could be done once, and whenever the doctor is asked; `/readyz` shows
every difference.
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
from server.keeper.furnishing import TRIAL_DISK
from server.keeper.runtime import Problem, Runtime, RuntimeFailed
from server.keeper.sandboxes import Sandboxes
from server.keeper.wanted import Wanted

_PROBE = (Path(__file__).parent / "probe.py").read_text()
_STRAIN = (Path(__file__).parent / "strain.py").read_text()
PROBE_SECONDS = 60.0  # a slow host needs half of it
_STRAIN_MEMORY, _STRAIN_CPUS = 128 << 20, 0.5  # so little that taking more hurts nobody
_PAGE = 4096
_PAUSE_SECONDS, _LONGEST_PAUSE = 2.0, 60.0  # between two attempts at start
_FAILURES = (RuntimeFailed, GuestSilent, SandboxError, OSError, ValueError)

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
        "largest file": config.disk_max,
        "io_uring": "refused",
        "vsock": "refused",
        "new user namespace": "refused",
        "signal to the guest": "refused",
        "memory of the guest": "refused",
        "socket of the guest": "refused",
        "kernel symbols": "hidden",
        "disk limit": "enforced",
    }


# With gVisor a sandbox has a kernel of its own, which shows none of the limits that hold the whole of it, and
# which calls to it are allowed is nobody's concern outside.
_NOT_IN_GVISOR = {
    "seccomp mode",
    "memory limit",
    "process limit of the container",
    "cpu quota",
    "new user namespace",
}

# What must become of a program that takes more than it may.
UNDER_STRAIN: dict[str, object] = {
    "memory beyond the limit": "killed",
    "processes beyond the limit": "refused",
    "cpu beyond the quota": "held",
    "a connection outwards": "impossible",
}

_OUTWARDS, _MEMORY = "a connection outwards", "memory beyond the limit"

Looked = tuple[dict[str, object], dict[str, object]]  # what must be found, and what was


class SelfCheck:
    def __init__(
        self, config: Config, runtime: Runtime, sandboxes: Sandboxes, guests: GuestClient, soft_disk: bool
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._soft_disk = soft_disk
        self._sandboxes = sandboxes
        self._guests = guests
        self._differences: dict[str, str] | None = None
        self._trouble: Problem | None = None
        self._attempts = 0
        self._over = threading.Event()

    def start(self) -> None:
        """Unless somebody has looked already."""
        if self._differences is None:
            threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._over.set()

    def forget(self) -> None:
        """What was found is of sandboxes that will not be made any more."""
        self._differences = self._trouble = None

    def doing(self) -> str | None:
        """Until it has run once."""
        if self._differences is not None:
            return None
        return "starting a sandbox and running a command in it" + (
            f", attempt {self._attempts}" if self._attempts > 1 else ""
        )

    def trouble(self) -> Problem | None:
        """Why no sandbox has run a command yet, if one was tried."""
        return self._trouble if self._differences is None else None

    def differences(self) -> dict[str, str] | None:
        """By name, what was found instead of what should be; None until the check has run."""
        return self._differences

    def look_again(self) -> Looked | str:
        """What code in a new sandbox must find and does find, or why that cannot be told."""
        try:
            found = self._found(self._config.memory, self._config.cpus, _PROBE, str(TRIAL_DISK))
        except _FAILURES as exc:
            self._trouble = _problem(exc)
            return _told(self._trouble)
        wanted = expected(self._config)
        if self._runtime.oci().is_gvisor:
            wanted = {name: value for name, value in wanted.items() if name not in _NOT_IN_GVISOR}
        if self._soft_disk:  # said apart, and loudly: see `volumes/choice.py`
            wanted.pop("disk limit")
            wanted["largest file"] = self._config.disk + _PAGE  # it is the guest that sets it then
        self._differences = compare(wanted, found)
        return wanted, found

    def strain(self) -> Looked | str:
        """The same for programs that take more than they may."""
        try:
            if self._runtime.oci().is_gvisor:
                return self._strain_gvisor()
            return UNDER_STRAIN, self._strained()
        except _FAILURES as exc:
            return _told(_problem(exc))

    def _strain_gvisor(self) -> Looked:
        """Too much memory is refused, or ends the whole sandbox, as too many processes do."""
        found = self._strained(_OUTWARDS)
        try:
            found |= self._strained(_MEMORY)
        except (GuestSilent, SandboxError):
            found[_MEMORY] = "killed"
        held = "refused" if found[_MEMORY] == "refused" else "killed"
        return {_OUTWARDS: UNDER_STRAIN[_OUTWARDS], _MEMORY: held}, found

    def _strained(self, *names: str) -> dict[str, object]:
        """By what was tried; everything, if nothing is named."""
        limits = (str(_STRAIN_MEMORY), str(self._config.processes), str(_STRAIN_CPUS))
        return self._found(_STRAIN_MEMORY, _STRAIN_CPUS, _STRAIN, *limits, *names)

    def _run(self) -> None:
        """Until a sandbox could be looked at: what is in the way may go away by itself."""
        pause = _PAUSE_SECONDS
        while (why := self._attempt()) is not None:
            _log.error("the self-check %s", why)
            if self._over.wait(pause):
                return
            pause = min(2 * pause, _LONGEST_PAUSE)
        for name, difference in (self._differences or {}).items():
            _log.error("the wall differs: %s: %s", name, difference)

    def _attempt(self) -> str | None:
        """Why it could not be done, if so."""
        self._attempts += 1
        try:
            told = self.look_again()
        except Exception as exc:  # the edge of a thread: without it nobody would learn that it has ended
            _log.exception("the self-check failed")
            self._trouble = Problem("The keeper failed. Its log says why.", repr(exc)[:300])
            return _told(self._trouble)
        return told if isinstance(told, str) else None

    def _found(self, memory: int, cpus: float, script: str, *arguments: str) -> dict[str, object]:
        wanted = Wanted("", self._config.default_image, memory, cpus, self._config.disk, {})
        command = Command(["python3", "-c", script, *arguments], PROBE_SECONDS, shell=None)
        with self._sandboxes.trial(wanted) as sandbox:
            answer = self._guests.run(sandbox, secrets.token_hex(16), "", command)
        if answer.timed_out:
            raise ValueError(f"what runs in the sandbox took longer than {PROBE_SECONDS:g} s: a slow host")
        found = json.loads(answer.stdout.first)
        if not isinstance(found, dict):
            raise ValueError("the probe gave no table")
        return found


def _problem(exc: Exception) -> Problem:
    return exc.problem if isinstance(exc, RuntimeFailed) else Problem(str(exc))


def _told(problem: Problem) -> str:
    """For the operator alone."""
    return f"could not run: {problem.whole}"


def compare(expected: dict[str, object], found: dict[str, object]) -> dict[str, str]:
    return {
        name: f"expected {value!r}, found {found.get(name)!r}"
        for name, value in expected.items()
        if found.get(name) != value
    }
