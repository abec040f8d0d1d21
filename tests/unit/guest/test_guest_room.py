"""A full disk is told with the result, and where only the guest can keep a limit, it does."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from guest_files import Files, refused
from guest_process import UID, GuestProcess

from server.file_errors import DiskFull
from server.guest.room import measure

MIB = 1 << 20
REGULAR_LOOK = 1.9  # seconds, a little less than the guest's own


@pytest.fixture
def cramped(unbound: GuestProcess) -> Iterator[GuestProcess]:
    """A guest whose home is a filesystem of 8 MiB."""
    options = f"size=8m,nr_inodes=1000,uid={UID},gid={UID},mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(unbound.home)], check=True)
    pid = subprocess.run(
        ["pgrep", "-P", str(unbound.process.pid)], check=True, capture_output=True, text=True
    ).stdout.strip()
    enter = ["nsenter", "-t", pid, "-m", "mount", "-t", "tmpfs", "-o", options, "none", str(unbound.home)]
    subprocess.run(enter, check=True)  # it has mounts of its own
    unbound.bind()
    yield unbound
    subprocess.run(["umount", "-l", str(unbound.home)], check=True)


def test_a_full_workspace_is_told_until_there_is_room_again(cramped: GuestProcess) -> None:
    full = cramped.run("head -c 9000000 /dev/zero > big")
    assert (full.exit_code, full.disk_full) == (1, True)
    assert cramped.run("false").disk_full
    assert not cramped.run("true").disk_full, "a command that is content has not run out of anything"
    assert cramped.run("echo complaint >&2").disk_full
    assert not cramped.run("rm big; false").disk_full


CLEANS_UP = """
import os
try:
    with open('big', 'wb') as file:
        file.write(bytes(9000000))
finally:
    os.unlink('big')
"""


def test_who_was_refused_room_and_leaves_nothing_is_told_so_too(cramped: GuestProcess) -> None:
    assert cramped.run("fallocate -l 9M big; rm -f big; false").disk_full
    assert cramped.run(["python3", "-c", CLEANS_UP]).disk_full
    caught = cramped.python(CLEANS_UP)
    assert (caught.exit_code, caught.disk_full) == (1, True)
    assert cramped.python("import sys; sys.stderr = None\n" + CLEANS_UP).disk_full, "its message tells"
    assert not cramped.run("false").disk_full


def test_words_in_stdout_are_believed_while_there_is_no_room(cramped: GuestProcess) -> None:
    """As agents write it: the complaint goes through a pipe, and the last command of it is content."""
    assert not cramped.run("echo No space left on device").disk_full
    piped = cramped.run("dd if=/dev/zero of=big bs=1M count=9 2>&1 | head -n 1")
    assert (piped.exit_code, piped.stderr.total, piped.disk_full) == (0, 0, True)
    assert not cramped.run("rm big; echo No space left on device").disk_full


def test_a_workspace_without_inodes_is_full(cramped: GuestProcess) -> None:
    assert cramped.run("touch {1..1000}").disk_full
    assert cramped.run("ls | wc -l").stdout.first.decode().strip().isdigit()


def test_a_failure_with_room_left_is_not_a_full_disk(guest: GuestProcess) -> None:
    assert not guest.run("false").disk_full
    assert not guest.run("cd; chmod 0 .; ls").disk_full
    assert guest.run("cd /; chmod 700 ~; ls -A ~").stdout.total == 0, "looking leaves nothing behind"


@pytest.fixture
def soft(unbound: GuestProcess) -> GuestProcess:
    unbound.bind(soft_disk=8 * MIB)
    return unbound


@pytest.mark.parametrize("language", ["bash", "python"])
def test_a_writer_over_the_soft_limit_is_stopped_and_its_shell_survives(
    soft: GuestProcess, language: str
) -> None:
    soft.run({"bash": "kept=yes", "python": "kept = 'yes'"}[language], language=language)
    greedy = {
        "bash": "head -c 20000000 /dev/zero > big; touch written; sleep 60 & sleep 60",
        "python": "import time; open('big', 'w').write('x' * 20000000); time.sleep(60)",
    }[language]
    began = time.monotonic()
    stopped = soft.run(greedy, timeout=30, language=language)
    assert time.monotonic() - began < 15
    assert (stopped.disk_full, stopped.timed_out, stopped.cancelled) == (True, False, False)
    kept = soft.run({"bash": "echo $kept", "python": "print(kept)"}[language], language=language)
    assert (kept.stdout.first, stopped.restarted, kept.disk_full) == (b"yes\n", False, True)
    assert not soft.run("rm -f big; true").disk_full


def test_who_writes_fast_is_stopped_before_the_next_regular_look(soft: GuestProcess) -> None:
    """At least once in five times: a slow machine may miss its moment, but not always."""

    def took() -> float:
        began = time.monotonic()
        greedy = "for i in {1..9000}; do head -c 3000000 /dev/zero > $i; sleep 0.01; done"
        assert soft.run(greedy, timeout=30).disk_full
        seconds = time.monotonic() - began
        soft.run("rm -f *")
        return seconds

    assert any(took() < REGULAR_LOOK for _ in range(5))


def test_no_file_becomes_larger_than_the_soft_limit(soft: GuestProcess) -> None:
    assert soft.run("head -c 20000000 /dev/zero > big").disk_full
    assert 8 * MIB < (soft.home / "big").stat().st_size <= 8 * MIB + 4096
    soft.run("rm big")
    assert soft.python(CLEANS_UP).disk_full, "although nothing of it is left"


def test_a_write_from_outside_ends_where_the_soft_limit_does(soft: GuestProcess) -> None:
    files = Files(soft)
    refused(DiskFull, lambda: files.write("d/big", bytes(9 * MIB)))
    assert files.tree() == []
    files.write("half", bytes(5 * MIB))
    refused(DiskFull, lambda: files.copy("half", "other"))
    refused(DiskFull, lambda: files.write("other", bytes(5 * MIB)))
    assert files.tree() == ["half"]
    files.write(str(soft.dir / "tmp" / "elsewhere"), bytes(5 * MIB))


def test_what_is_over_the_soft_limit_can_be_deleted_in_its_own_time(soft: GuestProcess) -> None:
    assert soft.run("head -c 20000000 /dev/zero > big").disk_full
    slow = soft.run("sleep 2.5; rm big; sleep 0.1")
    assert (slow.exit_code, slow.disk_full) == (0, False)


def test_what_a_command_left_behind_is_stopped_too(soft: GuestProcess) -> None:
    soft.run("(while :; do head -c 4000000 /dev/zero >> big; sleep 0.1; done) &")
    soft.run("sleep 3")
    deadline = time.monotonic() + 15
    while soft.alive("sleep 0.1"):
        assert time.monotonic() < deadline, "it writes on"
        time.sleep(0.1)


def test_files_without_bytes_count_towards_the_soft_limit(soft: GuestProcess) -> None:
    assert soft.run("touch {1..3000}").disk_full
    assert not soft.run("rm -f *; true").disk_full


def test_measuring_counts_what_is_on_disk(tmp_path: Path) -> None:
    """Holes take nothing, a file of two names is one file, links are not followed."""
    (tmp_path / "file").write_bytes(b"x" * MIB)
    (tmp_path / "second").hardlink_to(tmp_path / "file")
    (tmp_path / "link").symlink_to("/usr")
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(1 << 40)
    used, complete, _ = measure(str(tmp_path))
    assert complete
    assert MIB <= used < 1.1 * MIB


def test_a_tree_too_deep_to_measure_is_no_way_around_the_soft_limit(soft: GuestProcess) -> None:
    deep = (
        "import os\nfor i in range(2000): os.mkdir('d'); os.chdir('d')\nopen('f', 'w').write('x' * 20000000)"
    )
    assert soft.run(["python3", "-c", deep]).disk_full
    assert not soft.run("rm -r d; true").disk_full
