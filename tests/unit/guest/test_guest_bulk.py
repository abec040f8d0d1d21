"""Archives and searches in the real guest: done as its user, for as long as somebody wants them."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import threading
import time
from pathlib import Path

import pytest
from expect import eventually
from guest_bulk import Bulk
from guest_process import UID, GuestProcess, errors_of, text

from server import errors
from server.file_errors import DiskFull, InvalidArchive, InvalidPath, NotFound, TooLarge
from server.guest_bulk_client import Packing, Unpacking
from server.guest_client import GuestSilent


@pytest.fixture
def bulk(guest: GuestProcess) -> Bulk:
    return Bulk(guest)


def tar(**files: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


@pytest.mark.parametrize("format", ["tar", "tar.gz", "zip"])
def test_a_tree_goes_out_and_comes_in_again_as_the_users(bulk: Bulk, format: str) -> None:
    bulk.guest.run("mkdir -p a/b; head -c 5000000 /dev/urandom >a/b/big; ln -s b a/link")
    bulk.guest.run("mkfifo pipe; touch no; chmod 0 no")
    packing = bulk.pack(format=format)
    archive = b"".join(packing.pieces())
    assert (packing.told.entries, packing.told.size, packing.told.skipped) == (4, 5_000_000, 2)
    told = bulk.unpack(archive, path="there", format=format)
    assert (told.files, told.directories, told.size, told.skipped) == (2, 2, 5_000_000, [])
    assert text(bulk.guest.run("cmp a/b/big there/a/b/big && readlink there/a/link")) == "b\n"
    assert (bulk.home / "there/a/b/big").stat().st_uid == UID


def test_refusals_come_before_anything_is_sent(bulk: Bulk) -> None:
    os.symlink("/etc", bulk.home / "out")
    with pytest.raises(NotFound):
        bulk.pack("nowhere")
    for call in (bulk.pack, bulk.begin):
        with pytest.raises(InvalidPath):
            call("out")
    bulk.guest.run("truncate -s 2G sparse")
    with pytest.raises(TooLarge):
        bulk.pack()
    bulk.pack(limit=4 << 30).close()
    assert text(bulk.guest.run("echo well")) == "well\n"


def test_a_refusal_in_the_midst_of_an_upload_is_told(bulk: Bulk) -> None:
    with pytest.raises(InvalidArchive):
        bulk.unpack(os.urandom(3_000_000))
    with pytest.raises(TooLarge):
        bulk.unpack(tar(a=bytes(3_000_000)), limit=1 << 20)  # type: ignore[arg-type]
    bulk.guest.run("ulimit -f 1024", shell="main")
    assert bulk.unpack(tar(b=b"x")).files == 1


def test_a_full_disk_is_told_as_that(bulk: Bulk) -> None:
    bulk.guest.run("mkdir small")
    pid = bulk.guest.process.pid
    inside = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=777", "none", str(bulk.home / "small")]
    subprocess.run(["nsenter", "-t", inside, "-m", *mount], check=True, timeout=10)
    for format in ("tar", "zip"):
        with pytest.raises(DiskFull):
            bulk.unpack(tar(big=os.urandom(3_000_000)), path="small", format=format)


@pytest.mark.parametrize("module", ["archives.pack", "archives.unpack"])
def test_who_hangs_up_ends_the_script(bulk: Bulk, module: str) -> None:
    bulk.guest.run("head -c 50000000 /dev/zero >big")
    if module == "archives.pack":
        transfer: Packing | Unpacking = bulk.pack()
    else:
        transfer = bulk.begin()
        transfer.give(tar(half=os.urandom(4 << 20))[: 2 << 20])
    assert bulk.guest.alive(module)
    transfer.close()
    eventually(lambda: not bulk.guest.alive(module))
    assert not [name for name in os.listdir(bulk.home) if name != "big"]


def test_a_script_that_is_killed_or_stopped_by_the_user_is_an_error_and_no_end(bulk: Bulk) -> None:
    bulk.guest.run("head -c 50000000 /dev/zero >big")
    pieces = bulk.pack().pieces()
    next(pieces)
    bulk.guest.run(["pkill", "-KILL", "-f", "archives[.]pack"])
    with pytest.raises((errors.GuestUnavailable, GuestSilent)):
        list(pieces)
    assert text(bulk.guest.run("echo well")) == "well\n"


def test_the_pipes_of_a_script_are_not_the_users_to_open(bulk: Bulk) -> None:
    """The script is the user's process, but what it is told and tells goes through pipes of the guest's."""
    bulk.guest.run("head -c 50000000 /dev/zero >big")
    packing = bulk.pack()
    answer = bulk.guest.run("p=$(pgrep -f archives[.]pack); for n in 0 1 2; do : <>/proc/$p/fd/$n; done")
    assert errors_of(answer).count("Permission denied") == 3
    packing.close()


def test_eight_at_once_and_no_more(bulk: Bulk) -> None:
    open_ones = [bulk.begin() for _ in range(8)]
    with pytest.raises(errors.TooManyStreams):
        bulk.begin()
    for one in open_ones:
        one.close()

    def free() -> bool:
        try:
            bulk.begin().close()
        except errors.TooManyStreams:
            return False
        return True

    eventually(free)


def test_a_search_tells_where_and_ends_when_nobody_waits_for_it(bulk: Bulk) -> None:
    bulk.guest.run("mkdir d; echo one needle >d/f; python3 -c \"print('a' * 100000 + 'b')\" >evil")
    found = bulk.search("needle")
    assert [(m.path, m.line, m.column, m.text) for m in found.matches] == [
        (os.fsencode(bulk.home / "d/f"), 1, 5, "one needle")
    ]
    assert (found.searched, found.truncated) == (2, False)
    with pytest.raises(errors.Invalid) as caught:
        bulk.search("(", regex=True)
    assert caught.value.extras == {"field": "pattern"}
    searching = threading.Thread(
        target=lambda: bulk_of(bulk).search("(a|aa|a*)*$", regex=True, seconds=1), daemon=True
    )
    searching.start()
    eventually(lambda: bulk.guest.alive("guest.search"))
    began = time.monotonic()
    assert text(bulk.guest.run("echo well")) == "well\n"
    assert time.monotonic() - began < 2
    searching.join(timeout=20)
    assert not searching.is_alive() and not bulk.guest.alive("guest.search")


def bulk_of(bulk: Bulk) -> Bulk:
    """For another thread: each has a client of its own."""
    return Bulk(bulk.guest)
