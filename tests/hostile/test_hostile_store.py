"""Attacks by a web process that was taken over: it owns the store, and the keeper that reads it is root.

Rows are altered as such a process could; then the keeper does for real what it does by itself, or is asked
to. Nothing outside its own directories may be read, written or removed.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from invariants import eventually
from stack import Stack, running

from server.errors import SandboxError
from server.keeper_client import KeeperClient


@pytest.fixture(scope="module")
def own() -> Iterator[Stack]:
    with running() as stack:
        yield stack


@pytest.fixture
def treasure(own: Stack) -> Iterator[Path]:
    """A directory of the host's that is none of the keeper's business, as it must be afterwards."""
    place = own.dir / "treasure"
    (place / "files").mkdir(parents=True)
    (place / "files" / "kept").write_text("gold")
    (place / "shell").symlink_to(place / "files" / "kept")
    before = told(place)
    yield place
    assert told(place) == before
    for path in (place / "shell", place / "files" / "kept"):
        path.unlink()
    (place / "files").rmdir()
    place.rmdir()


def told(place: Path) -> dict[str, Any]:
    found = [place, *sorted(place.rglob("*"))]
    facts = [(path, path.lstat()) for path in found]
    return {str(path): (fact.st_mode, fact.st_uid, fact.st_size, fact.st_mtime_ns) for path, fact in facts}


def alter(stack: Stack, sql: str, *values: object) -> None:
    with contextlib.closing(sqlite3.connect(stack.dir / "state" / "store" / "store.db")) as store, store:
        store.execute("PRAGMA busy_timeout = 10000")
        assert store.execute(sql, values).rowcount == 1


def opened(stack: Stack, **wish: Any) -> str:
    answer = stack.call("POST", "/create_session", json=wish)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["session_id"])


def cause_of(stack: Stack, session: str) -> str | None:
    answer = stack.call("GET", f"/v1/sessions/{session}")
    return str(answer.json()["cause"]) if answer.status_code == 410 else None


@pytest.fixture
def keeper(own: Stack) -> Iterator[KeeperClient]:
    """Asked as a web worker would that has fallen to somebody."""
    with KeeperClient(own.dir / "state" / "run" / "keeper.sock") as client:
        yield client


def restart_keeper(stack: Stack) -> None:
    stack.kill("keeper")
    stack.start_keeper()
    stack.wait_ready()


def names_for(treasure: Path) -> list[str]:
    return [str(treasure), "../../treasure", "../../treasure/", "", ".", "..", "x" * 32, "ab" * 15 + "/."]


def test_a_sandbox_named_by_a_path_is_not_removed_when_its_session_expires(
    own: Stack, treasure: Path
) -> None:
    sessions = {opened(own): name for name in names_for(treasure)}
    for session, name in sessions.items():
        alter(own, "UPDATE sessions SET sandbox = ?, last_used_at = 0 WHERE id = ?", name, session)

    def check() -> None:
        assert [cause_of(own, session) for session in sessions] == len(sessions) * ["expired"]
        assert not own.containers() and not own.directories()

    eventually(check, 30)
    assert treasure.exists()


def test_nor_by_the_reconciler_of_a_keeper_that_starts(own: Stack, treasure: Path) -> None:
    """And such a row keeps no keeper from starting."""
    sessions = {opened(own): name for name in names_for(treasure)}
    for session, name in sessions.items():
        alter(own, "UPDATE sessions SET sandbox = ? WHERE id = ?", name, session)
    restart_keeper(own)
    assert [cause_of(own, session) for session in sessions] == len(sessions) * ["lost"]
    assert not own.containers() and not own.directories()


def test_a_volume_named_by_a_path_is_neither_written_nor_mounted_nor_removed(
    own: Stack, keeper: KeeperClient, treasure: Path
) -> None:
    for name in names_for(treasure)[:3]:
        session = opened(own)
        alter(own, "UPDATE sessions SET volume = ? WHERE id = ?", name, session)
        for ask in (
            functools.partial(keeper.pause, session, cold=True),
            functools.partial(keeper.snapshot, session, secrets.token_hex(16)),
        ):
            with pytest.raises(SandboxError):
                ask()
        own.call("DELETE", f"/v1/sessions/{session}")


def test_a_snapshot_named_by_a_path_is_not_copied(own: Stack, keeper: KeeperClient, treasure: Path) -> None:
    session = opened(own)
    row = "INSERT INTO snapshots VALUES (?, 'default', ?, NULL, 'snapshot', NULL, 'ready', 0, ?)"
    alter(own, row, str(treasure), session, time.time())
    alter(own, "UPDATE sessions SET state = 'opening', source = ? WHERE id = ?", str(treasure), session)
    with pytest.raises(SandboxError):
        keeper.open(session, "default", 64 << 20, 1, 64 << 20, {}, first=True)
    alter(own, "DELETE FROM sessions WHERE id = ?", session)
    alter(own, "DELETE FROM snapshots WHERE id = ?", str(treasure))


def test_a_fake_guest_is_not_spoken_to(own: Stack, keeper: KeeperClient) -> None:
    """It would decide what root writes beside a workspace, and be told what only a guest is told."""
    session = opened(own)
    place = own.dir / "state" / "store" / "fake.sock"
    with socket.socket(socket.AF_UNIX) as fake:
        fake.bind(str(place))
        fake.listen()
        fake.setblocking(False)
        alter(own, "UPDATE sessions SET address = ? WHERE id = ?", f"unix:{place}", session)
        keeper.pause(session, cold=False)
        keeper.resume(session, "used")
        with pytest.raises(BlockingIOError):  # nobody has called
            fake.accept()
    place.unlink()
    own.call("DELETE", f"/v1/sessions/{session}")


@pytest.mark.parametrize("name", ["../../../../treasure/new", "/{}/treasure/new", "..", ".", "", "a/b"])
def test_a_dataset_is_mounted_below_data_or_not_at_all(own: Stack, treasure: Path, name: str) -> None:
    sent = own.call("POST", "/upload", files=[("file", ("a.txt", b"mine"))]).json()["files"][0]["file_id"]
    alter(own, "UPDATE uploads SET name = ? WHERE id = ?", name.format(own.dir), sent)
    answer = own.call("POST", "/create_session", json={"datasets": [sent]})
    assert answer.status_code == 400, answer.text
    assert not [place for place in own.mounts() if not place.endswith("/workspace")]
