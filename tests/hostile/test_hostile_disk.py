"""Attacks on the disk (A20 to A28): quotas, inodes, depth, nested subvolumes, storms of snapshots."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from invariants import Neighbour, Session, Tenant, nothing_left

LARGEST_FILE = 100 << 20
LARGEST_COMMAND = 1 << 20
EVERY_WAY = """
import mmap, os
for n in range(400):
    try:
        with open(f"f{n}", "wb+") as file:
            if n % 4 == 0:
                file.write(bytes(1 << 20))
            elif n % 4 == 1:
                file.truncate(1 << 20)
                for at in range(0, 1 << 20, 4096):
                    os.pwrite(file.fileno(), b"x" * 4096, at)
            elif n % 4 == 2:
                file.truncate(1 << 20)
                memory = mmap.mmap(file.fileno(), 1 << 20)
                for at in range(0, 1 << 20, 4096):
                    memory[at] = 1
                memory.flush()
            else:
                os.posix_fallocate(file.fileno(), 0, 1 << 20)
    except (OSError, ValueError):
        pass
"""
SUBVOLUME = """
import ctypes, errno, json, os
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open("/workspace", os.O_RDONLY)
told = {}
numbers = 0x5000940E, 0x50009401, 0x50009417, 0x50009418, 0x5000940F, 0xC0109428, 0x4018942A, 0x8030942B
for number in numbers:
    result = libc.ioctl(fd, ctypes.c_ulong(number), ctypes.create_string_buffer(8192))
    told[hex(number)] = errno.errorcode.get(ctypes.get_errno(), "?") if result < 0 else "allowed"
print(json.dumps(told))
"""
DEEP = "import os\nfor i in range(5000):\n    os.mkdir('d'); os.chdir('d')"
MANY = "import os\nfor i in range(10**7): os.close(os.open(f'f{i}', os.O_CREAT | os.O_WRONLY))"


@pytest.mark.parametrize(
    "command", ["dd if=/dev/zero of=big bs=1M", "truncate -s 1T big", "fallocate -l 1G big"]
)
def test_a20_a21_a24_no_file_grows_beyond_the_limit(session: Session, command: str) -> None:
    free = shutil.disk_usage("/").free
    result = session.run(command, timeout=20)
    assert result["exit_code"] != 0
    assert int(session.run("stat -c %s big || echo 0")["stdout"].split()[-1]) <= LARGEST_FILE
    assert free - shutil.disk_usage("/").free < LARGEST_FILE // 2  # the store was allocated before
    session.run("rm -f big")
    assert session.run("echo room >file && cat file")["stdout"] == "room\n"


def test_a20_every_way_to_write_is_counted_together(session: Session, neighbour: Neighbour) -> None:
    """Many files, holes filled later, mappings, a neighbour's idle session: nothing gets past the limit."""
    with neighbour.undisturbed():
        session.run(["python3", "-c", EVERY_WAY], timeout=20)
    used = session.run("du -s -B1 /workspace | cut -f1")["stdout"]
    assert int(used) <= LARGEST_FILE
    assert session.get().json()["disk_used"] <= LARGEST_FILE + (1 << 20)


def test_a25_no_subvolume_or_snapshot_can_be_made_inside(session: Session) -> None:
    """Every ioctl of btrfs is refused before it gets there."""
    told = json.loads(session.run(["python3", "-c", SUBVOLUME])["stdout"])
    assert set(told.values()) == {"EPERM"}, told


def test_a28_a_storm_of_forks_and_snapshots_is_bounded(attacker: Tenant, neighbour: Neighbour) -> None:
    """What is too much is refused with a limit; the neighbour does not notice; nothing is left."""
    session = attacker.open()
    session.run("mkdir d; cd d; for n in $(seq 3000); do echo $n >$n; done", timeout=20)
    with neighbour.undisturbed():
        for _ in range(2):
            answer = session.post("fork?count=12")
            if answer.status_code != 201:
                assert answer.json()["code"] in ("too_many_sessions", "tenant_quota"), answer.text
            for told in answer.json().get("sessions", ()):
                attacker.close(told["session_id"])
        for _ in range(20):
            assert session.post("snapshots").status_code in (201, 409, 429)
    for told in attacker.call("GET", "/v1/snapshots").json()["snapshots"]:
        assert attacker.call("DELETE", f"/v1/snapshots/{told['snapshot_id']}").status_code == 204
    session.is_usable()


def test_a22_files_without_bytes_are_bounded_listed_and_gone_quickly(attacker: Tenant) -> None:
    """As many as fit: the kernel says when, a page of them takes little time, and closing does."""
    session = attacker.open(disk=8 << 20)
    result = session.run(["python3", "-c", MANY], timeout=60)
    assert "Disk quota exceeded" in result["stderr"] and result["disk_full"]
    began = time.monotonic()
    listed = session.tenant.call("GET", f"/v1/sessions/{session.id}/files?path=.&limit=1000").json()
    assert len(listed["entries"]) == 1000 and listed["next_cursor"]
    assert time.monotonic() - began < 5
    container, directory = session.container, session.directory
    began = time.monotonic()
    assert session.close().status_code == 204
    assert time.monotonic() - began < 10
    nothing_left(session, container, directory)


def test_a23_directories_deeper_than_any_path_can_name_are_removed(session: Session) -> None:
    session.run(["python3", "-c", DEEP], timeout=20)
    session.is_usable()
    taken = session.post("snapshots")
    assert taken.status_code == 201
    forked = session.post("fork").json()["sessions"][0]["session_id"]
    assert session.tenant.close(forked).status_code == 204
    session.tenant.call("DELETE", f"/v1/snapshots/{taken.json()['snapshot_id']}")
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
