"""Root in the web's directories: whoever owns them can lead it nowhere.

These tests are root's, as the keeper is; the web's user is `nobody`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import sqlite3
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from server import config as configuration
from server import instance as installation
from server.as_owner import as_owner_of
from server.audit.chain import Act
from server.audit.ledger import Ledger, LedgerFailed
from server.config import BadConfig, Config
from server.day_usage import usage_of
from server.errors import StoreUnavailable
from server.presence import is_anybody_at
from server.store import Store
from server.upload_rows import UploadRows
from server.uploads import sweep

NOBODY = pwd.getpwnam("nobody")
MAGIC = bytes.fromhex("d9d505f920a163d7")


@pytest.fixture
def webs() -> Iterator[Config]:
    """An installation whose store and uploads are the web's."""
    place = tempfile.mkdtemp(prefix="unit-", dir="/tmp")
    os.chmod(place, 0o711)
    config = configuration.load({"SANDBOX_STATE_DIR": f"{place}/state", "SANDBOX_WEB_USER": "nobody"})
    installation.prepare(config)
    yield config
    shutil.rmtree(place)


@pytest.fixture
def treasure(webs: Config) -> Path:
    """A file of root's that nobody else may reach."""
    place = webs.state.parent / "root's"
    place.mkdir(mode=0o700)
    (place / "treasure").write_text("gold")
    return place / "treasure"


def as_web(config: Config) -> contextlib.AbstractContextManager[None]:
    return as_owner_of(config.store_path.parent)


def plant_link(config: Config, path: Path, target: Path) -> None:
    with as_web(config):
        path.unlink(missing_ok=True)
        path.symlink_to(target)


@pytest.mark.parametrize("name", ["store.db", "audit.db"])
def test_a_link_in_a_databases_place_gives_nothing_away(webs: Config, treasure: Path, name: str) -> None:
    """A keeper that starts does not hand over what it leads to, but says what is wrong."""
    plant_link(webs, webs.store_path.with_name(name), treasure)
    with pytest.raises(BadConfig, match=name):
        installation.prepare(webs)
    assert (treasure.stat().st_uid, treasure.read_text()) == (0, "gold")


def test_a_link_to_nothing_makes_nothing(webs: Config, treasure: Path) -> None:
    new = treasure.with_name("new")
    plant_link(webs, webs.store_path, new)
    with pytest.raises(BadConfig):
        installation.prepare(webs)
    with pytest.raises(StoreUnavailable):
        Store(webs.store_path).check_writable(time.time())
    plant_link(webs, webs.audit_path, new)
    with pytest.raises(LedgerFailed):
        Ledger(webs.audit_path, b"").append("chain", [Act(0, "act", "done", "server")])
    assert not new.exists()


def test_a_second_name_of_another_file_is_not_handed_over(webs: Config, treasure: Path) -> None:
    """Where the kernel lets others link to what is not theirs."""
    webs.audit_path.unlink()
    os.link(treasure, webs.audit_path)
    with pytest.raises(BadConfig):
        installation.prepare(webs)
    assert treasure.stat().st_uid == 0


def test_a_pipe_in_a_files_place_holds_nobody_up(webs: Config) -> None:
    session = "0" * 32
    for path in (webs.audit_path, webs.presence_path, webs.store_path.with_name("usage")):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    with pytest.raises(BadConfig):
        installation.prepare(webs)
    with pytest.raises(OSError, match="not a plain file"):
        is_anybody_at(webs.presence_path, session)
    store = Store(webs.store_path)
    usage_of(webs, store).write_down()
    store.close()


def test_a_journal_cannot_make_root_remove_a_file(webs: Config, treasure: Path) -> None:
    """One that is hot names another, which SQLite removes when it has rolled back: whatever file that is."""
    with contextlib.closing(Store(webs.store_path)) as store:
        store.check_writable(0)
    with as_web(webs), contextlib.closing(sqlite3.connect(webs.store_path)) as database:
        database.execute("PRAGMA journal_mode=DELETE")
    pages, name = webs.store_path.stat().st_size // 4096, bytes(treasure)
    ending = (
        struct.pack(">I", (1 << 30) // 4096 + 1) + name + struct.pack(">II", len(name), sum(name)) + MAGIC
    )
    header = MAGIC + struct.pack(">IIIII", 0, 0, pages, 512, 4096)
    with as_web(webs):
        Path(f"{webs.store_path}-journal").write_bytes(header.ljust(512, b"\0") + ending)
    with contextlib.closing(Store(webs.store_path)) as store:
        store.check_writable(1)
    assert treasure.read_text() == "gold"


def test_root_and_the_web_use_one_store_and_own_what_it_is_made_of(webs: Config) -> None:
    store, ledger = Store(webs.store_path), Ledger(webs.audit_path, b"")
    store.add_tenant("a", 0)
    ledger.prepare()
    owners = {path.name: path.stat().st_uid for path in webs.store_path.parent.iterdir()}
    assert owners == dict.fromkeys(owners, NOBODY.pw_uid)
    assert {"store.db", "store.db-wal", "audit.db-wal"} <= owners.keys()
    (webs.state / "root").mkdir(mode=0o700)
    (webs.state / "root" / "again").touch()  # and root is root again
    store.close()
    ledger.close()


def test_what_is_planted_among_the_uploads_stops_no_sweep(webs: Config, treasure: Path) -> None:
    (webs.uploads_dir / "directory").mkdir()
    plant_link(webs, webs.uploads_dir / "link", treasure)
    (webs.uploads_dir / "left").touch()
    with contextlib.closing(Store(webs.store_path)) as store:
        sweep(webs, UploadRows(store), time.time())
    assert os.listdir(webs.uploads_dir) == ["directory"]
    assert treasure.read_text() == "gold"
