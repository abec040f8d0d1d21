"""The real guest as a plain process, PID 1 of its own namespace, and the server's client to speak to it.

Its code is a copy, as in the image: the commands' user need not be able to read this project.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from server.guest_answers import Answer
from server.guest_client import Binding, Command, GuestClient, Sandbox, dial

ROOT = Path(__file__).resolve().parents[3]
UID = 29001  # no sandbox of a real server has it: processes are counted by user
SECRET = b"not a secret at all"
OUTPUT_LIMIT = 1 << 20
LOG_LIMIT = 4 << 20
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_START = """import sys; sys.path.insert(0, {code!r})
from guest.main import main
main({run!r}, {shells!r}, {home!r}, ({tmp!r}, {data!r}))"""


_PLACES = {"run": 0o700, "shells": 0o711, "home": 0o700, "tmp": 0o1777, "data": 0o755}


def public_directory(prefix: str) -> Path:
    """Below /tmp, where another user can reach what is theirs (and a socket's path stays short)."""
    path = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    path.chmod(0o711)
    return path


class GuestProcess:
    def __init__(self, code: Path) -> None:
        self.dir = public_directory("guest-")
        self.uid = UID
        self.home = self.dir / "home"
        self._make_places()
        names = ("run", "shells", "home", "tmp", "data")
        script = _START.format(code=str(code), **{name: str(self.dir / name) for name in names})
        unshare = ["unshare", "-pf", "--kill-child", "--mount-proc"]
        self.process = subprocess.Popen(
            [*unshare, "python3", "-IS", "-c", script], stdin=subprocess.DEVNULL, cwd="/", env={"PATH": PATH}
        )
        self.sandbox = Sandbox("a" * 32, f"unix:{self.dir / 'run' / 'guest.sock'}", SECRET)
        self._clients: list[GuestClient] = []
        self._mine = threading.local()

    def _make_places(self) -> None:
        for name, mode in _PLACES.items():
            (self.dir / name).mkdir()
            (self.dir / name).chmod(mode)
        (self.dir / "run" / "secret").write_bytes(SECRET)
        os.chown(self.home, UID, UID)

    def await_socket(self) -> None:
        deadline = time.monotonic() + 10
        while not (self.dir / "run" / "guest.sock").exists():
            assert time.monotonic() < deadline and self.process.poll() is None, "the guest did not start"
            time.sleep(0.005)

    def bind(self, **changes: Any) -> None:
        env = {"PATH": PATH, "HOME": str(self.home), "LANG": "C.UTF-8"}
        self.uid = changes.get("uid", UID)
        settings = {"uid": UID, "processes": 512, "executions": 8, "output_limit": OUTPUT_LIMIT}
        settings |= {"log_limit": LOG_LIMIT, "env": env, "soft_disk": None}
        self.client.bind(self.sandbox, Binding(**{**settings, **changes}), time.monotonic() + 10)

    @property
    def client(self) -> GuestClient:
        """One for each thread: in the server greenlets share one, and switch only where it waits."""
        if not hasattr(self._mine, "client"):
            self._mine.client = GuestClient(OUTPUT_LIMIT, 8)
            self._clients.append(self._mine.client)
        client: GuestClient = self._mine.client
        return client

    def run(
        self, command: str | list[str], timeout: float = 10, id: str = "", mark: str = "", **options: Any
    ) -> Answer:
        execution = id or secrets.token_hex(16)
        if isinstance(command, list):
            options["shell"] = None  # as the API does
        return self.client.run(self.sandbox, execution, mark, Command(command, timeout, **options))

    def python(self, code: str, timeout: float = 10, **options: Any) -> Answer:
        return self.run(code, timeout, language="python", **options)

    def later(self, command: str | list[str], timeout: float = 10, **options: Any) -> Future[Answer]:
        """The same from a thread: the command has not ended when this returns."""
        promised: Future[Answer] = Future()

        def work() -> None:
            try:
                promised.set_result(self.run(command, timeout, **options))
            except Exception as exc:  # handed to whoever asks for the result
                promised.set_exception(exc)

        threading.Thread(target=work, daemon=True).start()
        return promised

    @contextlib.contextmanager
    def connection(self) -> Iterator[socket.socket]:
        """A bare connection, for what no client of ours would say."""
        with dial(self.sandbox.address) as connection:
            yield connection

    def await_file(self, name: str) -> None:
        deadline = time.monotonic() + 10
        while not (self.home / name).exists():
            assert time.monotonic() < deadline, f"no file {name}"
            time.sleep(0.005)

    def alive(self, pattern: str) -> bool:
        """Whether a process of the commands' user has this in its command line."""
        return (
            subprocess.run(["pgrep", "-U", str(self.uid), "-f", pattern], capture_output=True).returncode == 0
        )

    def stop(self) -> None:
        for client in self._clients:
            client.forget(self.sandbox.id)
        self.process.send_signal(signal.SIGKILL)  # unshare takes the guest, its PID 1, with it
        self.process.wait(timeout=10)
        shutil.rmtree(self.dir)


def text(answer: Answer) -> str:
    return answer.stdout.first.decode() + answer.stdout.last.decode()


def errors_of(answer: Answer) -> str:
    return answer.stderr.first.decode() + answer.stderr.last.decode()
