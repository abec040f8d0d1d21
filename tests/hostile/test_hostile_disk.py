"""Attacks with files (A20 to A24, A27), as far as a plain directory allows: quotas come with the store."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from invariants import Session, nothing_left

LARGEST_FILE = 100 << 20
LARGEST_COMMAND = 1 << 20
DEEP = "import os\nfor i in range(5000):\n    os.mkdir('d'); os.chdir('d')"
MANY = "import os\nfor i in range(20000): os.close(os.open(f'f{i}', os.O_CREAT | os.O_WRONLY))"


@pytest.mark.parametrize(
    "command", ["dd if=/dev/zero of=big bs=1M", "truncate -s 1T big", "fallocate -l 1G big"]
)
def test_a20_a21_a24_no_file_grows_beyond_the_limit(session: Session, command: str) -> None:
    result = session.run(command, timeout=20)
    assert result["exit_code"] != 0
    assert int(session.run("stat -c %s big || echo 0")["stdout"].split()[-1]) <= LARGEST_FILE
    session.run("rm -f big")


def test_a22_a_session_with_many_files_closes_quickly(session: Session) -> None:
    session.run(["python3", "-c", MANY], timeout=20)
    container, directory = session.container, session.directory
    began = time.monotonic()
    assert session.close().status_code == 204
    assert time.monotonic() - began < 10
    nothing_left(session, container, directory)


def test_a23_directories_deeper_than_any_path_can_name_are_removed(session: Session) -> None:
    session.run(["python3", "-c", DEEP], timeout=20)
    session.is_usable()
    container, directory = session.container, session.directory
    assert session.close().status_code == 204
    nothing_left(session, container, directory)


def test_closing_follows_no_link_and_hangs_on_no_pipe(session: Session, tmp_path: Path) -> None:
    """Whatever the workspace is full of, nothing beyond it is touched (I2)."""
    canary = tmp_path / "canary"
    canary.write_text("alive")
    before = os.stat(canary)
    session.run(
        f"ln -s / root; ln -s {tmp_path} there; ln -s {canary} file; ln -s ../../../.. up; mkfifo pipe;"
        "touch -- -rf '*' $'a\\nb'; mkdir -m 000 locked; chmod 000 /workspace"
    )
    container, directory = session.container, session.directory
    assert session.close().status_code == 204
    nothing_left(session, container, directory)
    after = os.stat(canary)
    assert (canary.read_text(), after.st_mtime, after.st_mode) == ("alive", before.st_mtime, before.st_mode)
    assert Path("/etc/passwd").exists()


def test_a27_only_the_workspace_and_filesystems_in_memory_can_be_written(session: Session) -> None:
    """Directories, so that new files could be made, and files of the guest's own."""
    session.run("true", env={"A": "1"})
    session.python("1")
    session.run("(exit 3)")
    session.run("true")
    find = r"find / \( -path /proc -o -path /sys \) -prune -o -type d,f -writable -print 2>/dev/null"
    writable = set(session.run(find, timeout=20)["stdout"].split())
    allowed = ("/workspace", "/tmp", "/dev/shm", "/dev/mqueue")
    assert {path for path in writable if not path.startswith(allowed)} == set()
    files = " ".join(
        f"/run/shells/{n}/{name}" for n in (1, 2) for name in ("command", "with_env", "status", "order")
    )
    assert session.run(f"for f in {files}; do [ -w $f ] && echo $f; done; true")["stdout"] == ""


def test_filling_the_guests_own_filesystem_is_not_possible(session: Session) -> None:
    """The place where commands are handed over is not the user's to fill."""
    session.run("cat /dev/zero >/run/shells/1/command", timeout=5)
    assert session.run("echo usable", shell="another")["stdout"] == "usable\n"
    session.is_usable()


def test_large_commands_in_many_shells_do_not_fill_the_guests_filesystem(session: Session) -> None:
    """Each is within its limit; together they must not make the session unusable."""
    large = ": " + "x" * (LARGEST_COMMAND - 8)
    for name in "abcdefgh":
        assert session.execute(large, shell=name, timeout=5).status_code == 200
    assert session.run("echo usable", shell="i")["stdout"] == "usable\n"


def test_a_full_tmp_and_a_deleted_or_locked_home_leave_a_usable_shell(session: Session) -> None:
    session.run("cat /dev/zero >/tmp/x; mkdir a; cd a; rmdir /workspace/a; echo x >/dev/null", timeout=10)
    session.run("rm -f /tmp/x; cd /; chmod 000 /workspace")
    assert session.run("echo usable")["stdout"] == "usable\n"
    session.run("chmod 700 /workspace; cd")
    session.is_usable()
