"""Who speaks to a session is seen from outside, as long as it lives and speaks."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from server.presence import Presence, is_anybody_at

SPAWN = multiprocessing.get_context("spawn")
ONE, OTHER = "0123456789abcdef" * 2, "f" * 32


def _work(path: Path, wishes: Connection) -> None:
    """A worker: carries out what it is told, until the other end is closed."""
    present, kept = Presence(path), contextlib.ExitStack()
    while True:
        try:
            name, session = wishes.recv()
        except EOFError:
            return
        if name == "be_alone":
            kept.enter_context(present.alone(session))
            wishes.send(None)
        else:
            wishes.send(getattr(present, name)(session))


class Worker:
    def __init__(self, path: Path) -> None:
        self._wishes, theirs = SPAWN.Pipe()
        self._process = SPAWN.Process(target=_work, args=(path, theirs))
        self._process.start()
        theirs.close()

    def ask(self, name: str, session: str) -> None:
        self._wishes.send((name, session))
        assert self._wishes.poll(30), "no answer"
        self._wishes.recv()

    def kill(self) -> None:
        self._process.kill()
        self._process.join(30)
        self._wishes.close()


def test_before_any_worker_has_spoken_nobody_is_there(tmp_path: Path) -> None:
    assert not is_anybody_at(tmp_path / "presence", ONE)
    assert not (tmp_path / "presence").exists()


def test_who_speaks_is_there_until_the_last_call_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "presence"
    first, second = Worker(path), Worker(path)
    for worker in (first, first, second):
        worker.ask("enter", ONE)
    for worker in (first, first, second):
        assert is_anybody_at(path, ONE) and not is_anybody_at(path, OTHER)
        worker.ask("leave", ONE)
    assert not is_anybody_at(path, ONE)
    for worker in (first, second):
        worker.kill()


def test_the_dead_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "presence"
    worker = Worker(path)
    worker.ask("enter", ONE)
    worker.ask("enter", OTHER)
    worker.kill()
    assert not is_anybody_at(path, ONE) and not is_anybody_at(path, OTHER)


def test_one_worker_at_a_time_has_a_session_for_itself_until_it_dies(tmp_path: Path) -> None:
    path, mine = tmp_path / "presence", Presence(tmp_path / "presence")
    worker = Worker(path)
    worker.ask("be_alone", ONE)
    with mine.alone(OTHER):
        pass  # which is another session's
    got = threading.Event()

    def take() -> None:
        with mine.alone(ONE):
            got.set()

    waiting = threading.Thread(target=take)
    waiting.start()
    assert not got.wait(0.3)
    assert not is_anybody_at(path, ONE), "having it for oneself is not speaking to it"
    worker.kill()
    assert got.wait(10)
    waiting.join(10)
