"""An installation of its own for a test of quickstart.sh.

Its state directory, port, image tag, virtual environment and credentials are its own, so that a real
installation on the same machine is not disturbed.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str
    seconds: float


@dataclass(frozen=True)
class Place:
    """Where one installation keeps its things."""

    dir: Path
    env: dict[str, str]

    def run(self, *args: str, **env: str) -> Run:
        return run([str(ROOT / "quickstart.sh"), *args], self.env | env)

    @property
    def state(self) -> Path:
        return Path(self.env["SANDBOX_STATE_DIR"])

    @property
    def credentials(self) -> Path:
        return Path(self.env["XDG_CONFIG_HOME"], "sandbox", "credentials.json")

    @property
    def image(self) -> str:
        return "sandbox-server/default:" + self.env["QUICKSTART_IMAGE_TAG"]

    def key(self) -> str:
        return str(json.loads(self.credentials.read_text())["api_key"])

    def pids(self) -> list[int]:
        return [
            int((self.state / "quickstart" / f"{name}.pid").read_text().split()[0])
            for name in ("keeper", "web")
        ]


def run(command: list[str], env: dict[str, str], user: int | None = None) -> Run:
    started = time.monotonic()
    done = subprocess.run(
        command,
        env=env,
        user=user,
        group=user,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1100,
    )
    return Run(done.returncode, done.stdout, done.stderr, time.monotonic() - started)


def docker(*args: str) -> str:
    return subprocess.run(["docker", *args], check=True, capture_output=True, text=True, timeout=60).stdout


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextlib.contextmanager
def new_place() -> Iterator[Place]:
    directory = Path(tempfile.mkdtemp(prefix="sbxqs-", dir="/var/tmp"))  # a short path: sockets live below it
    directory.chmod(0o755)  # the web workers are another user
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SANDBOX_", "QUICKSTART_", "XDG_"))}
    mine = {
        "SANDBOX_STATE_DIR": str(directory / "state"),
        "SANDBOX_BIND": f"127.0.0.1:{free_port()}",
        "XDG_CONFIG_HOME": str(directory / "config"),
        "QUICKSTART_VENV": str(directory / "venv"),
        "QUICKSTART_IMAGE_TAG": "e2e-" + uuid.uuid4().hex[:8],
    }
    place = Place(directory, kept | mine)
    try:
        yield place
    finally:
        place.run("uninstall")
        shutil.rmtree(directory)
