"""All groups of checks: those that any process on this host can do, and those of the keeper's."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from server.config import Config
from server.instance import Owner, web_owner
from server.keeper.doctor import (
    CRITICAL,
    Finding,
    engine,
    hosts,
    kernel,
    leftovers,
    oci,
    proxy,
    room,
    state,
    wall,
)
from server.keeper.doctor.room import Stock
from server.keeper.runtime import Runtime, RuntimeFailed
from server.keeper.selfcheck import SelfCheck

_REPEATED_SECONDS = 3.0
_ROOT = Path("/")


def on_host(config: Config, runtime: Runtime | None, why_oci: str = "") -> Iterator[Finding]:
    """`why_oci`: why sandboxes are made with what they are made with, if somebody has chosen."""
    owner = _web_as_found(config)
    yield from _of_engine(config, runtime, why_oci)
    yield from kernel.sysctls(_ROOT)
    yield from kernel.user_namespaces(_ROOT)
    yield from room.space("disk.state", str(config.state))
    yield from state.rights(config, owner, os.geteuid())
    yield from state.web_user(owner, os.geteuid())
    yield from proxy.examine(config, _ROOT)
    yield from leftovers.examine(_ROOT, config.volumes_dir)


def _web_as_found(config: Config) -> Owner:
    """Without the server's settings, as after a crash: whoever owns the store that is there."""
    if config.web_user or not config.store_path.exists():
        return web_owner(config)
    told = config.store_path.stat()
    return Owner(told.st_uid, told.st_gid)


def _of_engine(config: Config, runtime: Runtime | None, why_oci: str) -> Iterator[Finding]:
    before = time.time()
    try:
        if runtime is None:
            raise RuntimeFailed("The Docker Engine does not answer.")
        facts, made_with = runtime.facts(), runtime.oci()
    except RuntimeFailed as exc:
        yield Finding(
            "engine.answers",
            CRITICAL,
            str(exc),
            "an answer",
            "systemctl start docker; look at journalctl -u docker",
        )
        return
    yield Finding("engine.answers", "ok", "it answers", "an answer")
    yield from engine.judge(facts)
    yield from oci.examine(made_with, facts, why_oci)
    yield from hosts.judge(facts, made_with, hosts.tested())
    yield from kernel.clock(facts.clock, (before, time.time()))
    if facts.root:
        yield from room.space("disk.engine", facts.root)


class Doctor:
    """In the keeper: the host, and what only the keeper sees. One at a time; its word holds for a moment."""

    def __init__(self, config: Config, runtime: Runtime, selfcheck: SelfCheck, why_oci: str) -> None:
        self._why_oci = why_oci
        self._config = config
        self._runtime = runtime
        self._selfcheck = selfcheck
        self._lock = threading.Lock()
        self._last: tuple[float, list[Finding]] = (0.0, [])

    def examine(self, stock: Stock) -> list[Finding]:
        with self._lock:
            until, found = self._last
            if not found or time.monotonic() > until:
                of_host = on_host(self._config, self._runtime, self._why_oci)
                found = [*of_host, *room.storage(stock), *self._of_wall()]
                self._last = (time.monotonic() + _REPEATED_SECONDS, found)
            return found

    def _of_wall(self) -> Iterator[Finding]:
        looked, strained = self._selfcheck.look_again(), self._selfcheck.strain()
        for group, told in (("wall", looked), ("limits", strained)):
            if isinstance(told, str):
                yield Finding(
                    f"{group}.sandbox", CRITICAL, told, "a throw-away sandbox", "look at the keeper's log"
                )
            else:
                yield from wall.judge(group, *told)
