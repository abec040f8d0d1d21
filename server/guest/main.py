"""PID 1 of a sandbox: listens on the socket that the server dials, runs what it is asked, reaps orphans.

To listen and to greet takes little; what runs commands is loaded once somebody was greeted. So the server
finds a guest that has just started, and comes with its first orders while the rest is being loaded.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import sys
import threading
import time

from . import protocol
from .bell import HungUp
from .refused import Refused

if protocol.TYPE_CHECKING:
    from typing import Any

    from .processes import Processes
    from .requests import Session

HOME = "/workspace"
OTHERS = ("/tmp", "/data")  # where else a caller may name files
_MOST_CONNECTIONS = 256
_STOPPED_BY_ENGINE = 75  # EX_TEMPFAIL: tells the keeper a stop by the engine from a crash
_BREATH = 0.05
_PEERCRED = struct.Struct("3i")


class Guest:
    """The listening side: who may speak, and one thread for each connection."""

    def __init__(self, secret: bytes, files: tuple[int, int], places: dict[str, Any]) -> None:
        self._secret = secret
        self._files = files
        self._places = places
        self._processes: Processes | None = None
        self._session: Session | None = None
        self._binding = threading.Lock()
        self._connections = threading.BoundedSemaphore(_MOST_CONNECTIONS)

    def listen(self, path: str) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path + ".new")
        os.chmod(path + ".new", 0o660)
        listener.listen(512)
        os.rename(path + ".new", path)  # who sees the name can connect
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                time.sleep(_BREATH)  # out of descriptors, most likely: some will be closed
                continue
            if not _from_outside(connection) or not self._admit(connection):
                connection.close()

    def _admit(self, connection: socket.socket) -> bool:
        if not self._connections.acquire(blocking=False):
            return False
        try:
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
        except RuntimeError:  # the container has no room for a thread
            self._connections.release()
            return False
        return True

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                while True:
                    head, body = protocol.receive(connection, protocol.TO_GUEST)
                    self._answer(connection, head, body)
                    _load()
        except (OSError, EOFError, HungUp, protocol.FrameError):
            pass  # the server hung up or was restarted; what it started goes on
        finally:
            self._connections.release()

    def _answer(self, connection: socket.socket, head: protocol.Head, body: protocol.Body) -> None:
        verb = str(head.get("verb"))
        if self._session is not None and self._session.is_transfer(verb):
            self._session.transfer(verb, head, connection)
            return
        try:
            answer, answer_body = self._dispatch(head, body, connection.fileno())
        except Refused as exc:
            answer, answer_body = {"ok": False, "code": exc.code, **exc.facts}, b""
        protocol.send(connection, answer, answer_body)

    def _dispatch(
        self, head: protocol.Head, body: protocol.Body, peer: int
    ) -> tuple[protocol.Head, protocol.Body]:
        verb = head.get("verb")
        if verb == "hello":
            proof = protocol.prove(self._secret, str(head.get("nonce")))
            bound = self._session is not None
            return {"ok": True, "version": protocol.VERSION, "proof": proof, "bound": bound}, b""
        if verb == "bind":
            self._bind(head)
            return {"ok": True}, b""
        if self._session is None:
            raise Refused("not_bound")
        return self._session.answer(str(verb), head, body, peer)

    def _bind(self, head: protocol.Head) -> None:
        from .processes import Processes
        from .requests import Places, bind

        with self._binding:
            if self._session is None:
                self._processes = Processes()
                self._session = bind(head, self._processes, self._files, Places(**self._places))
            elif not self._session.same(head):
                raise Refused("already_bound")

    def reap(self) -> None:
        """Before it is bound a guest has no children."""
        if self._processes is not None:
            self._processes.reap()


def _load() -> None:
    """What every later request needs. Only the first time takes time."""
    from . import requests  # noqa: F401 - it is there from now on


def _from_outside(connection: socket.socket) -> bool:
    """A peer outside our PID namespace shows as pid 0; under gVisor the outside shows as root's pid 1."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
    pid, uid, _ = _PEERCRED.unpack(raw)
    return bool(pid == 0 or (pid == 1 and uid == 0))


def reap_forever(guest: Guest) -> None:
    """The main thread's work: Python runs signal handlers only here."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(_STOPPED_BY_ENGINE))
    while True:
        guest.reap()
        os.read(wake_read, 4096)


def main(
    run: str = "/run/sandbox",
    shells: str = "/run/shells",
    home: str = HOME,
    others: tuple[str, ...] = OTHERS,
) -> None:
    os.umask(0)
    sys.setswitchinterval(0.001)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)  # the user's; the guest itself needs more than most
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    with open(os.path.join(run, protocol.SECRET_NAME), "rb") as file:
        secret = file.read()
    guest = Guest(secret, files, {"run": run, "shells": shells, "home": home, "others": others})
    path = os.path.join(run, protocol.SOCKET_NAME)
    threading.Thread(target=guest.listen, args=(path,), daemon=True).start()
    reap_forever(guest)
