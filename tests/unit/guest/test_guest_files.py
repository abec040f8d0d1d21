"""Files of the real guest's user: read and written, made, moved, copied and deleted, as that user."""

from __future__ import annotations

import hashlib
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
from guest_files import Files, refused
from guest_process import UID, text

from server import file_errors as errors
from server.guest_client import GuestSilent

BIG = os.urandom(1 << 20) * 20


def test_what_is_written_is_read_again_whole_and_is_the_users(files: Files) -> None:
    entry, new = files.write("a/b/big", BIG)
    assert new and (entry.kind, entry.size, entry.mode) == ("file", len(BIG), 0o644)
    assert entry.path == os.fsencode(files.home / "a/b/big")
    assert hashlib.sha256(files.read("a/b/big")).digest() == hashlib.sha256(BIG).digest()
    there = (files.home / "a/b/big").stat()
    assert (there.st_uid, there.st_gid) == (UID, UID)
    assert ((files.home / "a").stat().st_mode & 0o777, (files.home / "a").stat().st_uid) == (0o755, UID)
    assert files.stat("a/b/big") == entry


def test_an_empty_file_and_any_range_of_a_file(files: Files) -> None:
    files.write("empty")
    assert files.read("empty") == b""
    files.write("digits", b"0123456789")
    assert files.read("digits", 3, 7) == b"3456"
    assert files.read("digits", 9, 10) == b"9"
    assert files.read("digits", 4, 4) == b""


def test_replacing_is_atomic_keeps_the_mode_and_changes_the_tag(files: Files) -> None:
    first, _ = files.write("f", b"one", mode=0o750)
    writing = files.begin("f")
    writing.give(b"two, which is longer")
    assert files.read("f") == b"one" and files.tree() == ["f"]
    second, new = writing.finish()
    assert not new and second.mode == 0o750 and second.etag != first.etag
    assert files.read("f") == b"two, which is longer" and files.tree() == ["f"]


def test_who_reads_while_it_is_replaced_reads_the_old_one_to_its_end(files: Files) -> None:
    files.write("f", BIG)
    reading = files.client.read(files.guest.sandbox, b"f")
    pieces = reading.pieces(0, len(BIG))
    got = next(pieces)
    files.write("f", b"new")
    assert got + b"".join(pieces) == BIG
    files.delete("f")


def test_conditions_hold_at_the_beginning_and_at_the_end(files: Files) -> None:
    entry, _ = files.write("f", b"one")
    refused(errors.AlreadyExists, lambda: files.write("f", b"x", create_only=True))
    refused(errors.PreconditionFailed, lambda: files.write("f", b"x", match=["0-0-0-0"]))
    refused(errors.PreconditionFailed, lambda: files.write("none", b"x", match=["*"]))
    assert files.write("f", b"two", match=["0-0-0-0", entry.etag])[1] is False
    late, late_create = files.begin("f", match=["*"]), files.begin("g", create_only=True)
    files.delete("f")
    files.write("g", b"first")
    refused(errors.PreconditionFailed, late.finish)
    refused(errors.AlreadyExists, late_create.finish)
    assert files.tree() == ["g"] and files.read("g") == b"first"


def test_of_many_who_create_the_same_file_one_does(files: Files) -> None:
    writings = [files.begin("f", create_only=True) for _ in range(8)]
    results: list[bool] = []

    def finish(number: int) -> None:
        writings[number].give(b"%d" % number)
        try:
            results.append(writings[number].finish()[1])
        except errors.AlreadyExists:
            results.append(False)

    threads = [threading.Thread(target=finish, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(results) == [False] * 7 + [True]


def test_what_is_broken_off_leaves_nothing_behind(files: Files) -> None:
    writing = files.begin("new/deep/f")
    writing.give(BIG)
    writing.close()
    deadline = time.monotonic() + 5
    while files.tree() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert files.tree() == []


def test_more_than_the_limit_is_refused_and_leaves_nothing(files: Files) -> None:
    def too_much() -> None:
        writing = files.begin("f", limit=1 << 20)
        for _ in range(200):
            writing.give(BIG[: 1 << 20])
        writing.finish()

    refused(errors.TooLarge, too_much)
    assert files.tree() == []
    files.write("f", bytes(1 << 20), limit=1 << 20)


def test_a_full_disk_is_told_and_leaves_nothing(files: Files) -> None:
    small = files.guest.dir / "tmp"
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=1777", "none", str(small)]
    subprocess.run(["nsenter", "-t", str(_inner(files)), "-m", *mount], check=True, timeout=10)
    refused(errors.DiskFull, lambda: files.write(f"{small}/d/f", BIG))
    refused(errors.DiskFull, lambda: _copied_there(files, f"{small}/f"))
    assert files.names(str(small)) == []
    assert files.write(f"{small}/f", b"fits")[1]


def _copied_there(files: Files, path: str) -> None:
    files.write("big", BIG)
    files.copy("big", path)


def _inner(files: Files) -> int:
    """The guest itself: what unshare has forked."""
    pid = files.guest.process.pid
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def test_only_files_are_read_and_written_and_none_waits_for_anybody(files: Files) -> None:
    files.guest.run("mkfifo fifo; ln -s fifo link; mkdir d; ln -s l1 l2; ln -s l2 l1; ln -s /dev/zero z")
    began = time.monotonic()
    for path in ("fifo", "link"):
        refused(errors.NotARegularFile, lambda path=path: files.read(path))
        refused(errors.NotARegularFile, lambda path=path: files.write(path, b"x"))
        refused(errors.NotARegularFile, lambda path=path: files.edit(path, "a", "b"))
        refused(errors.NotARegularFile, lambda path=path: files.copy(path, "copy"))
    for call in (files.read, files.write, lambda path: files.edit(path, "a", "b")):
        refused(errors.IsDirectory, lambda call=call: call("d"))
        refused(errors.InvalidPath, lambda call=call: call("l1"))
        refused(errors.InvalidPath, lambda call=call: call("z"))
        refused(errors.InvalidPath, lambda call=call: call("x" * 256))
    assert files.stat("fifo").kind == "other" and files.stat("l1").target == b"l2"
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "/proc/self/environ", "out/environ", "out/mem"])
def test_nothing_outside_is_read_written_or_removed(files: Files, path: str) -> None:
    files.guest.run("ln -s /proc/self out")
    calls = [files.read, files.stat, files.write, files.mkdir, files.delete, files.names]
    calls += [lambda one: files.move(one, "here"), lambda one: files.copy(one, "here")]
    calls += [lambda one: files.copy("out", one), lambda one: files.edit(one, "a", "b")]
    for call in calls:
        refused(errors.InvalidPath, lambda call=call: call(path))
    assert files.tree() == ["out"]


def test_the_user_may_not_do_more_than_in_the_shell(files: Files) -> None:
    files.write("secret", b"x", mode=0o000)
    data = files.guest.dir / "data" / "set"
    data.write_text("rows")
    refused(errors.PermissionDenied, lambda: files.read("secret"))
    assert files.read(str(data)) == b"rows"
    for call in (files.write, files.delete, files.mkdir):
        refused(
            errors.PermissionDenied, lambda call=call: call(f"{data}2" if call != files.delete else f"{data}")
        )


def test_directories_are_made_once_with_their_parents(files: Files) -> None:
    entry, new = files.mkdir("a/b/c", mode=0o700)
    assert new and (entry.kind, entry.mode) == ("directory", 0o700)
    assert files.mkdir("a/b/c")[1] is False and files.mkdir(".")[1] is False
    refused(errors.NotFound, lambda: files.mkdir("x/y", parents=False))
    files.write("file")
    refused(errors.AlreadyExists, lambda: files.mkdir("file"))
    refused(errors.NotADirectory, lambda: files.mkdir("file/sub"))
    refused(errors.NotFound, lambda: files.write("nowhere/f", parents=False))
    assert files.tree() == ["a", "a/b", "a/b/c", "file"]


def test_moving_renames_and_replaces_only_when_told(files: Files) -> None:
    files.write("a", b"a")
    files.write("d/b", b"b")
    refused(errors.AlreadyExists, lambda: files.move("a", "d/b"))
    assert files.move("a", "d/b", overwrite=True).path.endswith(b"/d/b")
    files.move("d", "e")
    assert files.read("e/b") == b"a" and files.tree() == ["e", "e/b"]
    refused(errors.InvalidPath, lambda: files.move("e", "e/inside"))
    refused(errors.NotFound, lambda: files.move("a", "b"))
    refused(errors.IsDirectory, lambda: (files.write("f"), files.move("f", "e", overwrite=True)))


def test_moving_to_another_filesystem_moves_all_of_it(files: Files) -> None:
    small = files.guest.dir / "tmp"
    mount = ["mount", "-t", "tmpfs", "-o", "mode=1777", "none", str(small)]
    subprocess.run(["nsenter", "-t", str(_inner(files)), "-m", *mount], check=True, timeout=10)
    files.guest.run("mkdir -p d/e; echo x > d/e/f; ln -s e d/l; echo y > g")
    files.move("d", f"{small}/d")
    files.move("g", f"{small}/g")
    assert files.tree() == [] and files.names(str(small), depth=4) == ["d", "d/e", "d/e/f", "d/l", "g"]
    assert files.stat(f"{small}/d/l").target == b"e"
    refused(errors.AlreadyExists, lambda: (files.write("g"), files.move("g", f"{small}/g")))


def test_errors_of_a_move_or_copy_name_the_path_at_fault(files: Files) -> None:
    files.write("f")
    files.write("d/g")
    for call in (files.move, files.copy):
        for source, destination, at_fault, kind in (
            ("none", "new", "none", errors.NotFound),
            ("f", "none/new", "none/new", errors.NotFound),
            ("f", "d/g", "d/g", errors.AlreadyExists),
            ("d", "f", "f", errors.AlreadyExists),
            ("f", "f/new", "f/new", errors.NotADirectory),
            ("d", "/etc/new", "/etc/new", errors.InvalidPath),
        ):
            error = refused(kind, lambda call=call, way=(source, destination): call(*way))
            assert error.extras["path"] == at_fault, (call, source, destination)


def test_copying_files_and_trees(files: Files) -> None:
    files.write("f", BIG, mode=0o755)
    assert files.copy("f", "g").mode == 0o755 and files.read("g") == BIG
    refused(errors.AlreadyExists, lambda: files.copy("f", "g"))
    files.write("f", b"short")
    files.copy("f", "g", overwrite=True)
    assert files.read("g") == b"short"
    files.guest.run("mkdir -p d/e; echo x > d/e/f; ln -s e d/l; mkfifo d/p; mkdir -- -rf; touch './-rf/x'")
    files.copy("d", "c")
    files.copy("-rf", "-a")
    assert files.names("c", depth=9) == ["e", "e/f", "l", "p"] and files.names("-a") == ["x"]
    refused(errors.IsDirectory, lambda: files.copy("d", "n", recursive=False))
    refused(errors.InvalidPath, lambda: files.copy("d", "d/e/d"))
    refused(errors.AlreadyExists, lambda: files.copy("d", "c"))
    assert [name for name in files.tree() if "sandbox" in name] == []


def test_deleting_files_links_and_trees(files: Files) -> None:
    files.guest.run("mkdir -p d/e; echo x > d/e/f; ln -s d l; mkdir empty; ln -s /etc out; touch -- -rf '*'")
    files.delete("l")
    files.delete("out")
    files.delete("empty")
    files.delete("-rf")
    files.delete("*")
    refused(errors.DirectoryNotEmpty, lambda: files.delete("d"))
    files.delete("d", recursive=True)
    assert files.tree() == []
    refused(errors.NotFound, lambda: files.delete("d"))
    for path in (".", "./", str(files.home)):
        refused(errors.InvalidPath, lambda path=path: files.delete(path, recursive=True))


def test_five_thousand_nested_directories_are_listed_copied_and_deleted(files: Files) -> None:
    dig = "import os\nfor _ in range(5000):\n    os.mkdir('d'); os.chdir('d')"
    files.guest.run(["python3", "-c", dig], timeout=60)
    assert len(files.names(depth=64)) == 64
    with pytest.raises(errors.FileError):
        files.copy("d", "e")
    files.delete("d", recursive=True)
    assert files.names() == []


def test_names_of_any_bytes_go_round(files: Files) -> None:
    names = [
        b"new\nline",
        b"\xff\xfe",
        b" lead",
        b"trail ",
        "\u202e".encode(),
        b"\r\nSet-Cookie: x",
        b"n" * 255,
    ]
    names += ["\u00e9".encode(), "e\u0301".encode(), b"\x1b[2J", b"-rf", b"*", b"\\"]
    for name in names:
        files.write(name, name)
    listed = files.page().entries
    assert sorted(entry.path.rpartition(b"/")[2] for entry in listed) == sorted(names)
    for entry in listed:
        assert entry.path.endswith(files.read(entry.path))
        files.delete(entry.path)
    assert files.tree() == []


def test_a_file_that_shrinks_while_it_is_read_is_told_and_one_that_grows_ends(files: Files) -> None:
    files.write("f", BIG)
    reading = files.client.read(files.guest.sandbox, b"f")
    os.truncate(files.home / "f", 1 << 20)
    refused(errors.FileChanged, lambda: list(reading.pieces(0, len(BIG))))
    reading = files.client.read(files.guest.sandbox, b"f")
    with (files.home / "f").open("ab") as file:
        file.write(BIG)
    assert len(b"".join(reading.pieces(0, reading.entry.size))) == 1 << 20


def test_a_sparse_terabyte_is_told_for_what_it_is_and_any_part_of_it_is_read(files: Files) -> None:
    files.guest.run("truncate -s 1T sparse")
    assert files.stat("sparse").size == 1 << 40
    assert files.read("sparse", (1 << 40) - 5, 1 << 40) == bytes(5)


def test_writing_through_a_link_changes_what_it_leads_to(files: Files) -> None:
    files.guest.run("mkdir d; echo old > d/f; ln -s d/f l; ln -s d/new n; ln d/f hard")
    files.write("l", b"new")
    files.write("n", b"made")
    assert (
        files.stat("l").kind == "symlink" and files.read("d/f") == b"new" and files.read("d/new") == b"made"
    )
    assert files.read("hard") == b"old\n"  # the other name keeps what it had
    assert files.stat("l", follow=True).size == 3


def test_an_edit_replaces_one_text_or_says_why_not(files: Files) -> None:
    files.write("f", "one two two\nd\u00e9j\u00e0 \u00fc\r\n".encode(), mode=0o755)
    assert files.edit("f", "one", "1\n") == 1
    refused(errors.TextNotFound, lambda: files.edit("f", "three", "3"))
    assert refused(errors.TextNotUnique, lambda: files.edit("f", "two", "2")).extras["count"] == 2
    assert files.edit("f", "two", "zw\u00f6lf", every=True) == 2
    assert files.read("f").decode() == "1\n zw\u00f6lf zw\u00f6lf\nd\u00e9j\u00e0 \u00fc\r\n"
    assert files.stat("f").mode == 0o755
    files.write("big", bytes(9 << 20))
    refused(errors.TooLarge, lambda: files.edit("big", "\0", "x"))
    files.write("many", b"a" * (1 << 20))
    refused(errors.TooLarge, lambda: files.edit("many", "a", "b" * 1000, every=True))
    assert files.read("many") == b"a" * (1 << 20)


def test_a_user_who_stops_everything_stops_no_transfer(files: Files) -> None:
    files.write("f", BIG)
    files.guest.run("(while :; do kill -STOP -1; done) >/dev/null 2>&1 & sleep 0.1", shell=None, timeout=2)
    assert files.read("f") == BIG
    files.write("g", BIG)
    assert files.stat("g").size == len(BIG)


def test_a_connection_that_ends_in_the_midst_of_a_read_is_no_whole_file(files: Files) -> None:
    files.write("f", BIG)
    pieces = files.client.read(files.guest.sandbox, b"f").pieces(0, len(BIG))
    next(pieces)
    files.guest.process.kill()
    files.guest.process.wait(timeout=10)  # or it might send all of it first
    with pytest.raises(GuestSilent):
        list(pieces)


def test_commands_run_beside_file_transfers(files: Files) -> None:
    writing = files.begin("f")
    writing.give(b"half")
    assert text(files.guest.run("ls -A | wc -l")) == "0\n"
    writing.finish()
    assert text(files.guest.run("cat f")) == "half"
