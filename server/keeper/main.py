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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from server import config as configuration
from server import instance as installation
from server.config import BadConfig, Config
from server.guest_client import GuestClient
from server.keeper.filler import Filler
from server.keeper.pool import Pool
from server.keeper.reaper import Reaper
from server.keeper.runtime import Runtime, RuntimeFailed
from server.keeper.runtime.docker import DockerRuntime
from server.keeper.sandboxes import Sandboxes, Wanted
from server.keeper.selfcheck import SelfCheck
from server.keeper.storage import Storage
from server.logs import configure_logging
from server.store import Store

_REQUEST_LIMIT = 1 << 20
_READ_SECONDS = 10.0
_CHECK_SECONDS = 3.0  # how long an answer about the engine may be repeated without asking again

_STOP = {signal.SIGTERM, signal.SIGINT}

_log = logging.getLogger("sandbox.keeper")


@dataclass(frozen=True)
class Keeper:
    """Everything a verb needs. Requests come from the web workers; they are checked all the same."""

    config: Config
    sandboxes: Sandboxes
    runtime: Runtime
    selfcheck: SelfCheck
    checked: dict[str, Any]

    def open(self, request: dict[str, Any]) -> dict[str, Any]:
        wanted = self._wanted(request)
        if request["first"] is not True:
            self.sandboxes.await_first(wanted.session)
        self.sandboxes.open(wanted)
        return {}

    def close(self, request: dict[str, Any]) -> dict[str, Any]:
        self.sandboxes.close(_identifier(request["sandbox"]))
        return {}

    def examine(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"cause": self.sandboxes.examine(_identifier(request["session"]))}

    def check(self, request: dict[str, Any]) -> dict[str, Any]:
        """Kept for a moment: anybody may ask /readyz, and every asking would reach the engine."""
        now = time.monotonic()
        if now > self.checked.get("until", 0):
            problems = self.runtime.check(self.config.images.values())
            self.checked.update(problems=problems, until=now + _CHECK_SECONDS)
        return {"problems": self.checked["problems"], "wall": self.selfcheck.differences()}

    def _wanted(self, request: dict[str, Any]) -> Wanted:
        memory, cpus, env = request["memory"], request["cpus"], request["env"]
        if request["image"] not in self.config.images:
            raise ValueError("image")
        if type(memory) is not int or not 0 < memory <= self.config.memory_max:
            raise ValueError("memory")
        if type(cpus) not in (int, float) or not 0 < cpus <= self.config.cpus_max:
            raise ValueError("cpus")
        if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
            raise ValueError("env")
        return Wanted(_identifier(request["session"]), request["image"], memory, float(cpus), env)


def _identifier(value: object) -> str:
    """Ids become container names and directories: hex digits of the right number, or nothing."""
    if not isinstance(value, str) or len(value) != 32 or not set(value) <= set("0123456789abcdef"):
        raise ValueError("id")
    return value


class _Handler(socketserver.StreamRequestHandler):
    timeout = _READ_SECONDS
    server: _Server

    def handle(self) -> None:
        try:
            request = json.loads(self.rfile.readline(_REQUEST_LIMIT))
            answer = {"ok": True, **self.server.verbs[request["verb"]](request)}
        except RuntimeFailed as exc:
            _log.warning("%s", exc, extra={"fields": {"words": exc.words}})
            answer = {"ok": False, "detail": str(exc)}
        except Exception:  # the edge of the process: one failed request must not end the keeper
            _log.exception("a request failed")
            answer = {"ok": False, "detail": "The keeper failed. Its log says why."}
        with contextlib.suppress(OSError):  # who asked may have gone
            self.wfile.write(json.dumps(answer).encode() + b"\n")


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 256
    verbs: dict[str, Callable[[dict[str, Any]], dict[str, Any]]]


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
    runtime = DockerRuntime(config, instance.id, owner.gid)
    storage = Storage(config.sandboxes_dir, owner)
    guests = GuestClient(config.output_limit, config.executions_max)
    pool = Pool(config.pool_min, config.pool_max)
    sandboxes = Sandboxes(config, instance, store, runtime, storage, guests, pool, time.time)
    filler = Filler(config, pool, runtime, sandboxes)
    sandboxes.claim_uids(runtime.seen())
    reaper = Reaper(store, runtime, storage, sandboxes, time.time)
    reaper.expire()
    reaper.sweep(openings_before=started)  # what was being opened when the last keeper died
    _log.info("started", extra={"fields": {"instance": instance.id}})
    selfcheck = SelfCheck(config, sandboxes, guests)
    keeper = Keeper(config, sandboxes, runtime, selfcheck, {})
    server.verbs = {
        "open": keeper.open,
        "close": keeper.close,
        "examine": keeper.examine,
        "check": keeper.check,
    }
    reaper.start()
    selfcheck.start()
    filler.start()
    _serve_until_told_to_stop(server)
    filler.stop()
    reaper.stop()
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
