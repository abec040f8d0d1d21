"""The keeper's process: wiring, the socket, and the clock's work."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable

from server import config as configuration
from server import instance as installation
from server.config import BadConfig, Config
from server.keeper.listening import KeeperServer, listen
from server.keeper.meters import Meters
from server.keeper.runtime import RuntimeFailed
from server.keeper.runtime.docker import DockerRuntime
from server.keeper.wiring import put_together
from server.logs import configure_logging
from server.store import Store

_ENGINE_PAUSE = 2.0  # seconds between two attempts to reach it
_STOP = {signal.SIGTERM, signal.SIGINT}

_log = logging.getLogger("sandbox.keeper")


def run(config: Config) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP)  # before any thread: the main one waits for them
    started = time.time()
    instance = installation.prepare(config)
    owner = installation.web_owner(config)
    server = listen(config, owner.gid)
    store = Store(config.store_path)
    store.check_writable(time.time())
    meters = Meters()
    runtime = _reached(server, lambda: DockerRuntime(config, instance.id, owner.gid, meters.engine_called))
    if runtime is None:
        config.keeper_socket.unlink(missing_ok=True)
        return
    parts = put_together(config, instance, owner, store, runtime, meters, server.tell)
    server.tell("looking after the sandboxes that are there")
    parts.reaper.expire()
    parts.reaper.sweep(openings_before=started)  # what was being opened when the last keeper died
    _log.info("started", extra={"fields": {"instance": instance.id}})
    server.open(parts.verbs.table())
    parts.reaper.start()
    parts.selfcheck.start()
    parts.filler.start()
    parts.sampler.start()
    signal.sigwait(_STOP)  # sandboxes go on living: the next keeper finds them again
    _log.info("stopped")
    parts.selfcheck.stop()
    parts.sampler.stop()
    parts.filler.stop()
    parts.reaper.stop()
    parts.verbs.sandboxes.removals.finish()
    config.keeper_socket.unlink(missing_ok=True)
    store.close()


def _reached(server: KeeperServer, make: Callable[[], DockerRuntime]) -> DockerRuntime | None:
    """The engine, as soon as it answers: it may start later than we do. None if we are told to stop first."""
    server.tell("asking the Docker Engine")
    while True:
        try:
            return make()
        except RuntimeFailed as exc:
            _log.error("%s", exc, extra={"fields": {"words": exc.words}})
            server.tell_trouble(exc.problem)
        if signal.sigtimedwait(_STOP, _ENGINE_PAUSE) is not None:
            return None


def main() -> None:
    try:
        config = configuration.load(os.environ)
        configure_logging(config)
        run(config)
    except BadConfig as exc:
        sys.exit(f"keeper: {exc}")
    except RuntimeFailed as exc:
        sys.exit(f"keeper: {exc} ({exc.words})")
