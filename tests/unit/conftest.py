"""A prepared state directory without any process around it: a store, and the web application."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from web_in_process import Web

from server import config as configuration
from server import instance as installation
from server.app import build
from server.config import Config
from server.keys import new_key
from server.store import Store


@pytest.fixture
def config() -> Iterator[Config]:
    """In /tmp, because a socket's path is short."""
    place = tempfile.mkdtemp(prefix="unit-", dir="/tmp")
    yield configuration.load({"SANDBOX_STATE_DIR": place})
    shutil.rmtree(place)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store.db")
    store.add_tenant("a", 0)
    store.add_tenant("b", 0)
    yield store
    store.close()


@pytest.fixture
def web(config: Config) -> Iterator[Web]:
    installation.prepare(config)
    app = build(config)
    store = Store(config.store_path)
    yield Web(app.test_client(), new_key(store, "default", "test", 0), store)
    store.close()
    app.extensions["sandbox"].sessions._store.close()
    app.extensions["sandbox"].journal.ledger.close()
