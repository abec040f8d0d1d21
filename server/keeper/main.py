"""The keeper's process: wiring, the socket with its few typed verbs, and the clock's work."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import socketserver
import sys
import threading
import time
from typing import Any

from server import config as configuration
from server import instance as installation
from server.config import BadConfig, Config
from server.keeper.runtime import Refused, RuntimeFailed
from server.keeper.verbs import Verb
from server.keeper.wiring import put_together
from server.keeper_client import IDLE_SECONDS
from server.logs import configure_logging
from server.store import Store

_REQUEST_LIMIT = 1 << 20

_STOP = {signal.SIGTERM, signal.SIGINT}

_log = logging.getLogger("sandbox.keeper")


class _Handler(socketserver.StreamRequestHandler):
    """One connection, on which one request after the other is asked."""

    timeout = IDLE_SECONDS
    server: _Server

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # who asked has gone, or asks no more
            while (line := self.rfile.readline(_REQUEST_LIMIT)).endswith(b"\n"):
                self.wfile.write(json.dumps(self._answer(line)).encode() + b"\n")

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            return {"ok": True, **self.server.verbs[request["verb"]]({**request, "peer": self.connection})}
        except Refused as exc:
            return {"ok": False, "code": exc.code, "facts": exc.facts}
        except RuntimeFailed as exc:
            _log.warning("%s", exc, extra={"fields": {"words": exc.words}})
            return {"ok": False, "detail": str(exc)}
        except Exception:  # the edge of the process: one failed request must not end the keeper
            _log.exception("a request failed")
            return {"ok": False, "detail": "The keeper failed. Its log says why."}


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 256
    verbs: dict[str, Verb]


def _listen(config: Config, gid: int) -> _Server:
    """One keeper at a time: a socket that answers is another's, one that does not is a leftover."""
    path = config.keeper_socket
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
            raise BadConfig(f"another keeper already answers at {path}")
        except (FileNotFoundError, ConnectionRefusedError):
            path.unlink(missing_ok=True)
    server = _Server(str(path), _Handler)
    if os.geteuid() == 0:
        os.chown(path, -1, gid)
    path.chmod(0o660)
    return server


def run(config: Config) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)  # before any thread: the main one waits for them
    started = time.time()
    instance = installation.prepare(config)
    owner = installation.web_owner(config)
    server = _listen(config, owner.gid)
    store = Store(config.store_path)
    store.check_writable(time.time())
    parts = put_together(config, instance, owner, store)
    parts.reaper.expire()
    parts.reaper.sweep(openings_before=started)  # what was being opened when the last keeper died
    _log.info("started", extra={"fields": {"instance": instance.id}})
    server.verbs = parts.verbs.table()
    parts.reaper.start()
    parts.selfcheck.start()
    parts.filler.start()
    parts.sampler.start()
    _serve_until_told_to_stop(server)
    parts.sampler.stop()
    parts.filler.stop()
    parts.reaper.stop()
    parts.verbs.sandboxes.removals.finish()
    config.keeper_socket.unlink(missing_ok=True)
    store.close()


def _serve_until_told_to_stop(server: _Server) -> None:
    """Sandboxes go on living: the next keeper finds them again."""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    signal.sigwait(_STOP)
    _log.info("stopped")


def main() -> None:
    try:
        config = configuration.load(os.environ)
        configure_logging(config)
        run(config)
    except BadConfig as exc:
        sys.exit(f"keeper: {exc}")
    except RuntimeFailed as exc:
        sys.exit(f"keeper: {exc} ({exc.words})")
