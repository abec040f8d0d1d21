"""A whole server for tests: its own state directory and port, a real engine and a real gunicorn behind it."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pwd
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import requests
from sandbox_client import SandboxClient

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 60
IMAGE_TAG = os.environ.get("QUICKSTART_IMAGE_TAG", "latest")


class Stack:
    """Keeper and web of one installation. Everything it makes carries its instance's label."""

    def __init__(self, root: Path = ROOT, user: int | None = None, **settings: str) -> None:
        self.root = root
        self.python = sys.executable if user is None else interpreter()
        self.identity = _identity(user)
        self.dir = Path(tempfile.mkdtemp(prefix="sbx-", dir="/var/tmp"))
        self.dir.chmod(0o711)
        if user is not None:
            os.chown(self.dir, user, user)
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_")},
            "PYTHONPATH": str(root),
            "SANDBOX_STATE_DIR": str(self.dir / "state"),
            "SANDBOX_BIND": f"127.0.0.1:{self.port}",
            "SANDBOX_WEB_USER": "nobody",
            "SANDBOX_IMAGES": f"default=sandbox-server/default:{IMAGE_TAG}",
            "SANDBOX_EXECUTIONS_MAX": "16",
            "SANDBOX_PROCESSES": "64",
            "SANDBOX_POOL_MIN": "0",
            "SANDBOX_POOL_MAX": "0",
            "SANDBOX_STORAGE_SIZE": "3g",
            "SANDBOX_DISK_OVERCOMMIT": "100",
            "SANDBOX_MEMORY_OVERCOMMIT": "100",
            **settings,
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ctl("init")
        self.key = self.new_key("default")

    def ctl(self, *args: str, seconds: float = 60) -> str:
        command = [self.python, "-m", "server.ctl", *args]
        return subprocess.run(
            command,
            env=self.env,
            cwd=self.root,
            check=True,
            capture_output=True,
            text=True,
            timeout=seconds,
            **self.identity,
        ).stdout

    def new_key(self, tenant: str) -> str:
        return str(json.loads(self.ctl("key", "new", "--tenant", tenant, "--json"))["key"])

    @functools.cached_property
    def admin_key(self) -> str:
        """The operator's."""
        return str(json.loads(self.ctl("key", "new", "--admin", "--json"))["key"])

    def start(self) -> None:
        self.start_keeper()
        self.start_web()
        self.wait_ready()

    def start_keeper(self) -> None:
        self._start("keeper", [self.python, "-m", "server.keeper"])

    def start_web(self) -> None:
        self._start("web", [self.python, "-m", "gunicorn", "-c", "deploy/gunicorn.conf.py"])

    def _start(self, name: str, command: list[str]) -> None:
        with (self.dir / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env=self.env,
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self.identity,
            )

    def wait_ready(self) -> None:
        """Ready, and the self-check done: nothing of the server's own is going on any more."""
        deadline = time.monotonic() + START_SECONDS
        last: object = None
        while time.monotonic() < deadline:
            with contextlib.suppress(requests.RequestException, ValueError):
                last = requests.get(self.url + "/readyz", timeout=5).json()
                if last["status"] in ("ready", "degraded") and self._keeper_has_started():
                    return
            time.sleep(0.05)
        raise AssertionError(f"not ready: {last}\n{self.log('keeper')[-3000:]}\n{self.log('web')[-3000:]}")

    def _keeper_has_started(self) -> bool:
        """What /readyz says of a keeper may be a moment old, and of the one before."""
        if "keeper" not in self.processes:
            return True
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as asked:
            asked.settimeout(START_SECONDS)
            asked.connect(str(self.dir / "state" / "run" / "keeper.sock"))
            asked.sendall(b'{"verb": "check"}\n')
            with asked.makefile("rb") as answer:
                return json.loads(answer.readline())["wall"] is not None
        return False

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """The whole process group at once: gunicorn's master and its workers."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        process.wait(timeout=60)

    def stop(self) -> None:
        for name in list(self.processes):
            self.kill(name, signal.SIGTERM)

    def log(self, name: str) -> str:
        return (self.dir / f"{name}.log").read_text(errors="replace")

    def client(self, **options: Any) -> SandboxClient:
        return SandboxClient(**{"url": self.url, "api_key": self.key, **options})

    def call(self, method: str, path: str, key: str | None = None, **options: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {key or self.key}", **options.pop("headers", {})}
        return requests.request(method, self.url + path, **{"headers": headers, "timeout": 60, **options})

    @property
    def instance(self) -> str:
        return (self.dir / "state" / "instance").read_text().split()[0]

    def containers(self) -> list[str]:
        ours = f"label=sandbox-server.instance={self.instance}"
        host = self.env.get("SANDBOX_DOCKER_HOST")
        return docker(*(["-H", host] if host else []), "ps", "-aq", "--no-trunc", "--filter", ours).split()

    def container_names(self) -> list[str]:
        ours = f"label=sandbox-server.instance={self.instance}"
        return docker("ps", "-a", "--format", "{{.Names}}", "--filter", ours).split()

    def container_of(self, session_id: str) -> str:
        """The container behind a session, found in the store as an operator would."""
        with contextlib.closing(sqlite3.connect(self.dir / "state" / "store" / "store.db")) as store:
            row = store.execute("SELECT sandbox FROM sessions WHERE id = ?", (session_id,)).fetchone()
        return f"sandbox-{row[0]}"

    def directories(self) -> list[str]:
        return os.listdir(self.dir / "state" / "sandboxes")

    def volumes(self) -> list[str]:
        """Those that no workspace with a name has, nor a snapshot, nor a sandbox: tests may leave these."""
        kept = {place.read_text() for place in (self.dir / "state" / "sandboxes").glob("*/volume")}
        with contextlib.closing(sqlite3.connect(self.dir / "state" / "store" / "store.db")) as store:
            for sql in ("SELECT volume FROM workspaces", "SELECT id FROM snapshots"):
                kept |= {row[0] for row in store.execute(sql)}
        return sorted(set(os.listdir(self.dir / "state" / "volumes")) - kept)

    def mounts(self) -> list[str]:
        """What is mounted for sandboxes."""
        with open("/proc/self/mountinfo") as table:
            places = [line.split()[4] for line in table]
        return [place for place in places if place.startswith(f"{self.dir}/state/sandboxes/")]

    def leaks(self) -> dict[str, Any]:
        """What belongs to nobody, by kind, as an operator is told; or what stands in the way of telling."""
        answer = self.call("GET", "/v1/admin/leaks", self.admin_key)
        return dict(answer.json()["found"] if answer.status_code == 200 else answer.json())

    def wait_without_leaks(self, seconds: float = 60) -> None:
        """What a crash has left is removed by itself, and nothing else is ever there."""
        deadline = time.monotonic() + seconds
        while found := self.leaks():
            assert time.monotonic() < deadline, f"belongs to nobody: {found}\n{self.log('keeper')[-3000:]}"
            time.sleep(0.5)

    def remove(self) -> None:
        """Stop, and fail if anything is left behind that closing every session should have removed."""
        self.stop()
        left = {
            "containers": self.containers(),
            "directories": self.directories(),
            "mounts": self.mounts(),
            "volumes": self.volumes(),
        }
        self.ctl("close-all")
        self.ctl("unmount")
        shutil.rmtree(self.dir)
        assert not any(left.values()), f"left behind: {left}"

    def close_sessions(self) -> None:
        for session in self.call("GET", "/v1/sessions?limit=1000").json()["sessions"]:
            self.call("DELETE", f"/v1/sessions/{session['session_id']}")


def docker(*args: str) -> str:
    return subprocess.run(["docker", *args], check=True, capture_output=True, text=True, timeout=120).stdout


@contextlib.contextmanager
def running(
    around: Callable[[Stack], contextlib.AbstractContextManager[None]] | None = None, **settings: str
) -> Iterator[Stack]:
    """`around` is what the installation is put into before it starts."""
    stack = Stack(**settings)
    with contextlib.ExitStack() as things:
        things.callback(stack.remove)
        things.enter_context(around(stack) if around else contextlib.nullcontext())
        things.callback(stack.stop)
        stack.start()
        yield stack
        if "web" in stack.processes:
            stack.close_sessions()
        if stack.processes.keys() == {"web", "keeper"}:
            stack.wait_without_leaks()


def web_uid() -> int:
    return pwd.getpwnam("nobody").pw_uid


def _identity(user: int | None) -> dict[str, Any]:
    """How a process becomes a user in the docker group."""
    if user is None:
        return {}
    engine = os.stat("/var/run/docker.sock").st_gid
    return {"user": user, "group": user, "extra_groups": [engine]}


def interpreter() -> str:
    """A Python that the web's user may run: this one may lie in somebody's home."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return shutil.which(version, path="/usr/local/bin:/usr/bin") or sys.executable


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
