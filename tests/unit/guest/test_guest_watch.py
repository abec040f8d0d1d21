"""Watching in the real guest: what happened is told in order and once, and what was lost is told too."""

from __future__ import annotations

import os
import time

import pytest
from expect import eventually
from guest_bulk import Bulk
from guest_files import Files
from guest_process import GuestProcess, text

from server import errors
from server.file_errors import InvalidPath, NotFound

FLOOD = """
import os
for i in range(100000):
    name = f'f{i % 40000}'
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
    os.utime(name)
"""


@pytest.fixture
def bulk(guest: GuestProcess) -> Bulk:
    return Bulk(guest)


def test_what_happens_in_a_directory_is_told_once(bulk: Bulk) -> None:
    with bulk.watched() as told:
        bulk.guest.run("for i in 1 2 3 4 5; do echo $i >>f; done; mkdir d; touch d/unseen")
        assert told() == ["created f", "created d/"]
        bulk.guest.run("for i in 1 2 3 4 5; do echo $i >>f; done")
        assert told() == ["modified f"]
        bulk.guest.run("chmod 600 f; mv f g; rm g; rm -r d")
        assert told() == ["attributes f", "moved f -> g", "deleted g", "deleted d/"]
        bulk.guest.run("touch /tmp/x.$$; mv /tmp/x.$$ in; mv in /tmp/y.$$; rm /tmp/y.$$")
        assert sorted(told()) == ["created in", "deleted in"]


def test_below_a_directory_all_that_happens_is_told_wherever_things_are_moved(bulk: Bulk) -> None:
    bulk.guest.run("mkdir -p a/b c")
    with bulk.watched(recursive=True) as told:
        bulk.guest.run("touch a/b/f; mkdir -p new/deep/er; touch new/deep/er/f")
        first = told()
        assert sorted(first) == [
            "created a/b/f",
            "created new/",
            "created new/deep/",
            "created new/deep/er/",
            "created new/deep/er/f",
        ]
        bulk.guest.run("mv a c/a")
        assert told() == ["moved a -> c/a/"]
        bulk.guest.run("touch c/a/b/g; echo >new/deep/er/f")
        assert told() == ["created c/a/b/g", "modified new/deep/er/f"]
        bulk.guest.run(
            "mv new /tmp/moved.out; touch /tmp/moved.out/deep/unseen; touch seen; rm -r /tmp/moved.out"
        )
        assert sorted(told()) == ["created seen", "deleted new/"]


def test_a_file_can_be_watched_and_names_may_be_any_bytes(bulk: Bulk) -> None:
    bulk.guest.run("touch f")
    with bulk.watched("f") as told:
        bulk.guest.run("echo x >>f")
        assert told() == ["modified f"]
        bulk.guest.run("rm f")
        assert told()[-1].startswith("end f")
    with bulk.watched() as told:
        bulk.guest.run(r"touch $'a\nb' $'\xff'")
        assert sorted(told()) == ["created a\nb", "created \udcff"]


@pytest.mark.parametrize("recursive", [False, True])
def test_what_the_server_writes_is_told_by_its_name_only(bulk: Bulk, recursive: bool) -> None:
    files = Files(bulk.guest)
    bulk.guest.run("mkdir -p d/e; touch d/e/f")
    with bulk.watched(recursive=recursive) as told:
        files.write("f", b"first")
        assert told() == ["created f"]
        files.write("f", b"second")
        assert told() == ["modified f"]
        files.edit("f", "second", "third")
        assert told() == ["modified f"]
        files.copy("f", "g")
        assert told() == ["created g"]
        files.copy("d", "new")
        below = ["created new/e/", "created new/e/f"] if recursive else []
        assert told() == ["created new/", *below]
        bulk.guest.run(": >new/e/g")
        files.delete("g")
        assert told() == [*(["created new/e/g"] if recursive else []), "deleted g"]


def test_names_that_only_resemble_the_servers_are_told(bulk: Bulk) -> None:
    hidden = ".sandbox-" + "0a" * 8
    with bulk.watched() as told:
        bulk.guest.run(f"touch '#12' {hidden}x {hidden[:-1]}; touch {hidden}")
        assert sorted(told()) == ["created #12", f"created {hidden[:-1]}", f"created {hidden}x"]
        bulk.guest.run(f"chmod 600 '#12'; mv '#12' {hidden}")
        assert told()[-1] == "deleted #12"


@pytest.mark.parametrize("command", ["rm -r d", "mv d e"])
def test_the_end_of_what_is_watched_is_the_end(bulk: Bulk, command: str) -> None:
    bulk.guest.run("mkdir -p d/x")
    with bulk.watched("d", recursive=True) as told:
        bulk.guest.run(command)
        assert told()[-1] == "end d/"


def test_more_directories_than_may_be_are_told_as_an_overflow(bulk: Bulk) -> None:
    bulk.guest.run("mkdir $(seq 1200)", timeout=20)
    with bulk.watched(recursive=True) as told:
        first = told()
        assert len(first) == 201 and all(event.startswith("overflow") for event in first)
        bulk.guest.run("touch here")
        assert told() == ["created here"]


def test_a_flood_that_nobody_reads_costs_nothing_and_is_told_as_an_overflow(bulk: Bulk) -> None:
    watching = bulk.watch(recursive=True)
    before = resident(bulk)
    bulk.guest.run(["python3", "-c", FLOOD], timeout=60)
    assert resident(bulk) - before < 16 << 20
    kinds = set()
    for batch in watching.batches():
        kinds |= {change.kind for change in batch.read()}
        if not batch.read():
            break
    # Attributes that change right after the creation are part of it, unless a batch ended in between.
    assert {"created", "overflow"} <= kinds <= {"created", "attributes", "overflow"}
    watching.close()


def resident(bulk: Bulk) -> int:
    return int(text(bulk.guest.run("grep VmRSS /proc/1/status")).split()[1]) << 10


def test_eight_watch_at_once_and_who_hangs_up_makes_room(bulk: Bulk) -> None:
    watching = [bulk.watch() for _ in range(8)]
    with pytest.raises(errors.TooManyStreams):
        bulk.watch()
    for one in watching:
        one.close()

    def free() -> bool:
        try:
            bulk.watch().close()
        except errors.TooManyStreams:
            return False
        return True

    eventually(free)


def test_what_is_not_there_or_not_inside_is_not_watched(bulk: Bulk) -> None:
    os.symlink("/etc", bulk.home / "out")
    with pytest.raises(NotFound):
        bulk.watch("nowhere")
    with pytest.raises(InvalidPath):
        bulk.watch("out")


def test_the_users_own_inotify_instances_are_charged_and_ours_are_the_users(bulk: Bulk) -> None:
    """Who takes all of them has none left for us, and takes none of any other's."""
    take = (
        "import ctypes, time; libc = ctypes.CDLL(None)\n"
        "while libc.inotify_init() >= 0: pass\n"
        "open('taken', 'w').close(); time.sleep(60)"
    )
    bulk.guest.later(["python3", "-c", take], timeout=20)
    bulk.guest.await_file("taken")
    with pytest.raises(errors.TooManyStreams):
        bulk.watch()


def test_all_is_well_is_told_again_and_again(bulk: Bulk) -> None:
    watching = bulk.watch()
    began = time.monotonic()
    batches = watching.batches()
    assert [next(batches).read() for _ in range(3)] == [[], [], []]
    assert time.monotonic() - began < 5
    watching.close()
