"""The keeper's socket: its few typed verbs, a JSON line each, and what it says before it has started."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import socketserver
import threading
from pathlib import Path
from typing import Any

from server.config import BadConfig, Config
from server.keeper.runtime import Problem, Refused, RuntimeFailed
from server.keeper.verbs import Verb
from server.keeper_client import IDLE_SECONDS

_REQUEST_LIMIT = 1 << 20
_START_SECONDS = 60.0  # a request that came too early waits so long; who sent it may give up before

_log = logging.getLogger("sandbox.keeper")


class _Handler(socketserver.StreamRequestHandler):
    """One connection, on which one request after the other is asked."""

    timeout = IDLE_SECONDS
    server: KeeperServer

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # who asked has gone, or asks no more
            while (line := self.rfile.readline(_REQUEST_LIMIT)).endswith(b"\n"):
                self.wfile.write(json.dumps(self._answer(line)).encode() + b"\n")

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            verb = self.server.verb(request["verb"])
            return {"ok": True, **verb({**request, "peer": self.connection})}
        except Refused as exc:
            return {"ok": False, "code": exc.code, "facts": exc.facts}
        except RuntimeFailed as exc:
            _log.warning("%s", exc, extra={"fields": {"words": exc.words}})
            return {"ok": False, "detail": str(exc)}
        except Exception:  # the edge of the process: one failed request must not end the keeper
            _log.exception("a request failed")
            return {"ok": False, "detail": "The keeper failed. Its log says why."}


class KeeperServer(socketserver.ThreadingUnixStreamServer):
    """Answers from the first moment: while the keeper starts, `check` says with what, and all else waits."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), _Handler)
        self._doing = "starting"
        self._trouble: Problem | None = None
        self._verbs: dict[str, Verb] = {}
        self._is_open = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def tell(self, doing: str) -> None:
        self._doing, self._trouble = doing, None
        _log.info("starting: %s", doing)

    def tell_trouble(self, trouble: Problem) -> None:
        """Say what the start waits for. Callers get it at once, instead of waiting too."""
        self._trouble = trouble

    def open(self, verbs: dict[str, Verb]) -> None:
        self._verbs = verbs
        self._is_open.set()

    def verb(self, name: str) -> Verb:
        if name == "check" and not self._is_open.is_set():
            return self._check
        if (trouble := self._trouble) is not None:
            raise RuntimeFailed(trouble.detail, trouble.words)
        if not self._is_open.wait(_START_SECONDS):
            raise RuntimeFailed("The keeper is still starting. Try again soon.", self._doing)
        return self._verbs[name]

    def _check(self, _: dict[str, Any]) -> dict[str, Any]:
        trouble = self._trouble
        problems = {} if trouble is None else {"engine": trouble.detail}
        words = {} if trouble is None else {"engine": trouble.words}
        return {"doing": self._doing, "problems": problems, "words": words, "wall": None, "storage": None}


def listen(config: Config, gid: int) -> KeeperServer:
    """One keeper at a time: a socket that answers is another's, one that does not is a leftover."""
    path = config.keeper_socket
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
            raise BadConfig(f"another keeper already answers at {path}")
        except (FileNotFoundError, ConnectionRefusedError):
            path.unlink(missing_ok=True)
    server = KeeperServer(path)
    if os.geteuid() == 0:
        os.chown(path, -1, gid)
    path.chmod(0o660)
    return server
