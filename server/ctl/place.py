"""The installation that a command works on: its store, its tenants and their keys."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from server import instance as installation
from server.config import Config
from server.keeper_client import KeeperClient
from server.keys import Keys
from server.store import Store
from server.tenants import Tenants


@contextmanager
def opened_store(config: Config) -> Iterator[Store]:
    """An installation that stands keeps its owners, whoever asks; only `init` puts them right."""
    if not (config.state / "instance").exists():
        installation.prepare(config)
    store = Store(config.store_path)
    try:
        store.check_writable(time.time())
        yield store
    finally:
        store.close()


@contextmanager
def opened_tenants(config: Config) -> Iterator[Tenants]:
    with opened_store(config) as store, KeeperClient(config.keeper_socket) as keeper:
        yield Tenants(store, keeper, time.time)


@contextmanager
def opened_keys(config: Config) -> Iterator[Keys]:
    with opened_store(config) as store:
        yield Keys(store, time.time)
