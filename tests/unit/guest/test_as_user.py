"""A thread that acts as the user: on files alone, by itself, and not for longer than it should."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from guest_process import ROOT, UID, public_directory

from server.guest.as_user import as_user

_LOSES_ITSELF = """
from server.guest import as_user
real = as_user.call
def call(name, *arguments):
    if arguments[1:2] == (0,):
        raise PermissionError(1, "not this time")
    real(name, *arguments)
as_user.call = call
with as_user.as_user(29001, 29001):
    pass
print("went on")
"""


@pytest.fixture
def place() -> Iterator[Path]:
    path = public_directory("as-user-")
    path.chmod(0o777)
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=True, timeout=10)


def ids() -> list[list[str]]:
    """Uid, Gid and Groups of this very thread: real, effective, saved, and for files."""
    lines = Path(f"/proc/self/task/{threading.get_native_id()}/status").read_text().splitlines()
    return [line.split() for line in lines if line.startswith(("Uid", "Gid", "Groups"))]


def test_what_is_made_meanwhile_is_the_users(place: Path) -> None:
    before = ids()
    with as_user(UID, UID):
        (place / "mine").touch()
        with pytest.raises(PermissionError):
            Path("/proc/1/environ").read_bytes()
    made = (place / "mine").stat()
    assert (made.st_uid, made.st_gid) == (UID, UID)
    assert ids() == before


def test_only_the_effective_ids_change() -> None:
    """What a user may signal or trace is decided by the others."""
    with as_user(UID, UID):
        seen = ids()
    user = str(UID)
    assert seen == [["Uid:", "0", user, "0", user], ["Gid:", "0", user, "0", user], ["Groups:"]]


def test_other_threads_stay_who_they_are() -> None:
    began, over = threading.Event(), threading.Event()
    seen: list[list[str]] = []

    def look() -> None:
        began.wait(5)
        seen.extend(ids())
        over.set()

    before = ids()
    threading.Thread(target=look).start()
    with as_user(UID, UID):
        began.set()
        assert over.wait(5)
    assert seen == before


def test_an_error_in_the_block_ends_it_too() -> None:
    before = ids()
    with pytest.raises(ZeroDivisionError), as_user(UID, UID):
        raise ZeroDivisionError
    assert ids() == before


def test_a_process_that_cannot_come_back_does_not_go_on() -> None:
    command = [sys.executable, "-c", _LOSES_ITSELF]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (70, "")
