"""The store under many writers and under kill -9: nobody meets a lock, and nothing promised is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stack import ROOT

from server.store import Store

PROCESSES, THREADS, ROUNDS = 5, 10, 6
PATIENCE = 90

# Sessions and keys, as web workers write them: acknowledged ones are printed once they are written.
WRITER = """
import sys, threading, time
from pathlib import Path
from server.keys import Keys
from server.records import Session
from server.store import Store

path, name, threads, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
store = Store(path)
store.add_tenant(name, 1)

def write(worker):
    for number in range(rounds):
        session = f"{name}-{worker}-{number}"
        draft = Session(session, name, None, "opening", "i", 1, 1.0, 60, {}, 1, 1, 0, 9e9)
        store.reserve(draft, lambda connection, wanted: None)
        store.attach(session, session, "unix:/x", 1)
        store.use(session, 2, 0)
        key, _ = Keys(store, time.time).create(name, session)
        sys.stdout.write(f"{session} {key.id}\\n")
        sys.stdout.flush()

workers = [threading.Thread(target=write, args=(at,)) for at in range(threads)]
for one in workers:
    one.start()
for one in workers:
    one.join()
"""


def writer(path: Path, name: str, threads: int, rounds: int, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(threads), str(rounds)]
    with out.open("wb") as log, out.with_suffix(".err").open("wb") as errors:
        return subprocess.Popen(
            command, stdout=log, stderr=errors, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT
        )


def acknowledged(out: Path) -> list[tuple[str, str]]:
    """Whole lines only: the last one may have been cut."""
    lines = out.read_text().split("\n")[:-1]
    return [(session, key) for session, key in (line.split() for line in lines)]


def lost(path: Path, told: list[tuple[str, str]]) -> list[tuple[str, str]]:
    store = Store(path)
    try:
        return [(session, key) for session, key in told if not (store.session(session) and store.key(key))]
    finally:
        store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def test_fifty_writers_at_once_are_all_served(path: Path, tmp_path: Path) -> None:
    """Threads of several processes, through the real store: no error reaches them, no row is missing."""
    outs = [tmp_path / f"out-{number}" for number in range(PROCESSES)]
    writers = [writer(path, f"p{number}", THREADS, ROUNDS, out) for number, out in enumerate(outs)]
    assert [one.wait(timeout=PATIENCE) for one in writers] == [0] * PROCESSES
    assert [out.with_suffix(".err").read_text() for out in outs] == [""] * PROCESSES
    told = [one for out in outs for one in acknowledged(out)]
    assert len(told) == PROCESSES * THREADS * ROUNDS
    assert lost(path, told) == []


def test_a_process_that_is_killed_while_it_writes_loses_nothing_that_it_acknowledged(
    path: Path, tmp_path: Path
) -> None:
    """One after another, each in the midst of its work, beside one that goes on; the database stays whole."""
    steady = writer(path, "steady", 5, 40, tmp_path / "steady")
    outs = [tmp_path / f"killed-{number}" for number in range(3)]
    for number, out in enumerate(outs):
        doomed = writer(path, f"k{number}", 5, 10**6, out)
        deadline = time.monotonic() + PATIENCE
        while len(acknowledged(out)) < 20 and time.monotonic() < deadline:
            time.sleep(0.02)
        doomed.send_signal(signal.SIGKILL)
        assert doomed.wait(timeout=PATIENCE) == -signal.SIGKILL
    assert steady.wait(timeout=PATIENCE) == 0
    told = [one for out in (*outs, tmp_path / "steady") for one in acknowledged(out)]
    assert len(told) >= 3 * 20 + 5 * 40
    assert lost(path, told) == []
    store = Store(path)
    assert store.quickly("PRAGMA integrity_check").fetchone()[0] == "ok"
    store.close()
