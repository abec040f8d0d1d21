"""A Docker Engine of a test's own: restarted, or given OCI runtimes, without anybody else noticing."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

_START_SECONDS = 150.0
_LOAD_SECONDS = 180.0


class OwnEngine:
    def __init__(self, place: Path, runtimes: Mapping[str, str], programs: str) -> None:
        self._place = place
        self.runtimes = runtimes
        self.programs = programs
        self._namespace = f"sbx-{secrets.token_hex(4)}"  # of a containerd that it may share with others
        self.host = f"unix://{place}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, live_restore: bool) -> None:
        place = self._place
        settings = place / "daemon.json"  # or it would take those of this machine's engine
        settings.write_text(json.dumps({"live-restore": live_restore}))
        options = ["--data-root", str(place / "data"), "--exec-root", str(place / "exec")]
        options += ["--pidfile", str(place / "pid"), "--host", self.host, "--bridge=none", "--iptables=false"]
        options += [
            "--containerd-namespace",
            self._namespace,
            "--containerd-plugins-namespace",
            f"{self._namespace}-plugins",
        ]
        options += ["--config-file", str(settings)]
        for name, program in self.runtimes.items():
            options += ["--add-runtime", f"{name}={program}"]
        # In a network of its own: without a bridge it would remove the bridge of the host's engine.
        self._await_answer(["unshare", "--net", "dockerd", *options])

    def stop(self, number: int = signal.SIGTERM) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(timeout=120)
        self._process = None

    def load(self, image: str) -> None:
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saved:
            command = ["docker", "--host", self.host, "load", "--quiet"]
            subprocess.run(
                command, stdin=saved.stdout, check=True, capture_output=True, timeout=_LOAD_SECONDS
            )

    def remove(self) -> None:
        """The engine, what it started, and its files."""
        with contextlib.suppress(subprocess.SubprocessError):
            left = self._docker("ps", "-aq").split()
            if left:
                self._docker("rm", "-f", *left)
        if self._process is not None:
            self.stop()
        _end_all(self._place)
        with open("/proc/self/mountinfo") as table:
            mounted = [line.split()[4] for line in table]
        for place in reversed([one for one in mounted if one.startswith(f"{self._place}/")]):
            subprocess.run(["umount", "-l", place], check=False, timeout=30)
        shutil.rmtree(self._place)

    def _env(self) -> dict[str, str]:
        path = os.environ["PATH"]
        return {**os.environ, "PATH": f"{self.programs}:{path}" if self.programs else path}

    def _docker(self, *words: str) -> str:
        command = ["docker", "--host", self.host, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout

    def _await_answer(self, command: list[str]) -> None:
        """Started again when it gives up, as an init system does: on a busy machine its parts are late."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            if self._process is None or self._process.poll() is not None:
                (self._place / "pid").unlink(missing_ok=True)
                with (self._place / "log").open("ab") as log:
                    self._process = subprocess.Popen(command, env=self._env(), stdout=log, stderr=log)
            try:
                self._docker("version")
                return
            except subprocess.CalledProcessError:
                log = (self._place / "log").read_text(errors="replace")
                assert time.monotonic() < deadline, f"the engine did not start: {log[-2000:]}"
                time.sleep(0.1)


def _end_all(place: Path) -> None:
    """containerd and its shims outlive an engine that was killed."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and str(place / "exec").encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


@contextlib.contextmanager
def own_engine(
    image: str, runtimes: Mapping[str, str] | None = None, programs: str = ""
) -> Iterator[OwnEngine]:
    """`runtimes`: what it knows besides its own, by name, with the program behind each.

    `programs`: directories with another dockerd than the one that is under test.
    """
    programs = programs or os.environ.get("TEST_ENGINE_PROGRAMS", "")
    engine = OwnEngine(Path(tempfile.mkdtemp(prefix="sbx-engine-", dir="/var/tmp")), runtimes or {}, programs)
    try:
        engine.start(live_restore=True)
        engine.load(image)
        yield engine
    finally:
        engine.remove()
