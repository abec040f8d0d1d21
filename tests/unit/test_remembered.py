"""/readyz may be asked by anybody, without end: it costs one look at a time, however slow that is."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from server.keeper_client import KeeperClient
from server.readiness import Readiness
from server.remembered import Remembered
from server.store import Store


class SlowKeeper:
    """Answers like the keeper, after a while."""

    def __init__(self, path: Path) -> None:
        self.asked = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            self.asked += 1
            connection.recv(1000)
            time.sleep(0.5)
            connection.sendall(json.dumps({"ok": True, "problems": {}, "wall": {}}).encode() + b"\n")

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[SlowKeeper]:
    keeper = SlowKeeper(tmp_path / "keeper.sock")
    yield keeper
    keeper.close()


def test_however_many_ask_at_once_the_keeper_is_asked_once(
    keeper: SlowKeeper, store: Store, tmp_path: Path
) -> None:
    with KeeperClient(tmp_path / "keeper.sock") as client, ThreadPoolExecutor(20) as pool:
        readiness = Readiness(store, client)
        found = list(pool.map(lambda _: readiness.look(), range(20)))
    assert {ready.status for ready in found} == {"ready"}
    assert keeper.asked == 1


def test_what_was_found_is_told_again_for_a_while_only() -> None:
    found = iter(range(10))
    look = Remembered(lambda: next(found), 0.2)
    assert [look(), look()] == [0, 0]
    time.sleep(0.25)
    assert [look(), look()] == [1, 1]


def test_a_look_that_failed_is_not_remembered() -> None:
    looks: list[int] = []

    def look() -> int:
        looks.append(1)
        if len(looks) == 1:
            raise OSError
        return 7

    remembered = Remembered(look, 60)
    with pytest.raises(OSError):
        remembered()
    assert remembered() == 7
