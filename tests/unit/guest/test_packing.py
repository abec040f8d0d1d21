"""A tree as an archive: what is in it, what is left out, and what becomes of one that changes meanwhile."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from scripts import pack, started, unpack

FORMATS = pytest.mark.parametrize("format", ["tar", "tar.gz", "zip"])
NOT_TEXT = b"not text \xff\xfe"


def planted(home: Path) -> Path:
    """Some of everything that can be packed."""
    (home / "a").mkdir()
    (home / "a" / "empty").mkdir()
    (home / "a" / "small.txt").write_bytes(b"hello\n")
    (home / "a" / "large.bin").write_bytes(os.urandom(3 << 20))
    (home / "a" / "zeros.bin").write_bytes(bytes(5 << 20))
    (home / "a" / ("n" * 200)).write_bytes(b"a long name")
    (home / "nothing").write_bytes(b"")
    (home / "run.sh").write_bytes(b"#!/bin/sh\n")
    (home / "run.sh").chmod(0o4755)
    os.utime(home / "run.sh", (1_000_000_001, 1_000_000_001))
    (home / "link").symlink_to("a/small.txt")
    (home / "up").symlink_to("/etc/passwd")
    (home / "new\nline").write_bytes(b"odd")
    (home / "ünï").write_bytes(b"text")
    (home / os.fsdecode(NOT_TEXT)).write_bytes(b"bytes")
    return home


def content_of(home: Path) -> dict[bytes, object]:
    found: dict[bytes, object] = {}
    for folder, directories, files in os.walk(os.fsencode(home)):
        for name in [*directories, *files]:
            path = os.path.join(folder, name)
            key = os.path.relpath(path, os.fsencode(home))
            mode = os.lstat(path).st_mode
            if os.path.islink(path):
                found[key] = ("link", os.readlink(path))
            elif os.path.isdir(path):
                found[key] = "directory"
            else:
                with open(path, "rb") as file:
                    found[key] = (oct(mode & 0o777), int(os.lstat(path).st_mtime), file.read())
    return found


@FORMATS
def test_what_is_packed_and_unpacked_is_the_same(tmp_path: Path, format: str) -> None:
    (home := tmp_path / "home").mkdir()
    (there := tmp_path / "there").mkdir()
    done = pack(planted(home), format)
    assert [said["ok"] for said in done.said] == [True, True]
    assert done.said[0]["skipped"] == 0
    told = unpack(there, done.written, format).last
    assert (told["ok"], told["files"], told["directories"], told["skipped"]) == (True, 11, 2, [])
    assert content_of(there) == content_of(home)
    assert os.stat(there / "run.sh").st_mode & 0o7777 == 0o755


def test_tar_reads_what_is_packed(tmp_path: Path) -> None:
    (home := tmp_path / "home").mkdir()
    (there := tmp_path / "there").mkdir()
    packed = pack(planted(home), "tar.gz").written
    subprocess.run(["tar", "-xzf", "-"], input=packed, cwd=there, check=True, timeout=60)
    assert content_of(there) == content_of(home)


def test_python_reads_names_and_sizes_of_what_is_packed(tmp_path: Path) -> None:
    planted(tmp_path)
    with tarfile.open(fileobj=io.BytesIO(pack(tmp_path).written)) as tar:
        assert tar.getmember("a/zeros.bin").size == 5 << 20
        assert tar.getmember("up").linkname == "/etc/passwd"
    with zipfile.ZipFile(io.BytesIO(pack(tmp_path, "zip").written)) as zipped:
        assert zipped.testzip() is None
        assert zipped.getinfo("a/zeros.bin").file_size == 5 << 20


@FORMATS
def test_a_file_alone_is_packed_under_its_name(tmp_path: Path, format: str) -> None:
    (home := tmp_path / "home").mkdir()
    (there := tmp_path / "there").mkdir()
    done = pack(planted(home), format, path="link")
    assert unpack(there, done.written, format).last["files"] == 1
    assert (there / "small.txt").read_bytes() == b"hello\n"


@FORMATS
def test_pipes_sockets_and_what_may_not_be_read_are_left_out_and_counted(tmp_path: Path, format: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        (tmp_path / "file").write_bytes(b"x")
        done = pack(tmp_path, format)
    assert (done.last["ok"], done.last["entries"], done.said[0]["skipped"]) == (True, 1, 2)
    assert pack(tmp_path, format, path="fifo").said == [{"ok": False, "code": "not_a_regular_file"}]


def deep(home: Path, levels: int) -> None:
    here = os.open(home, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


@pytest.mark.parametrize("format", ["tar.gz", "zip"])
def test_a_tree_deeper_than_any_path_can_name_is_packed_and_unpacked(tmp_path: Path, format: str) -> None:
    (home := tmp_path / "home").mkdir()
    (there := tmp_path / "there").mkdir()
    deep(home, 2500)
    done = pack(home, format)
    assert (done.last["ok"], done.last["entries"]) == (True, 2501)
    told = unpack(there, done.written, format).last
    assert (told["ok"], told["files"], told["directories"], told["skipped"]) == (True, 1, 2500, [])
    for place in (home, there):
        subprocess.run(["rm", "-r", str(place)], check=True, timeout=60)


@FORMATS
def test_what_is_larger_than_the_limit_is_refused_before_the_first_byte(tmp_path: Path, format: str) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    done = pack(tmp_path, format)
    assert (done.written, done.said) == (b"", [{"ok": False, "code": "too_large"}])


@FORMATS
def test_a_file_that_grows_meanwhile_is_cut_where_it_ended(tmp_path: Path, format: str) -> None:
    (home := tmp_path / "home").mkdir()
    (home / "log").write_bytes(b"x" * (8 << 20))
    over = threading.Event()

    def grow() -> None:
        with (home / "log").open("ab") as file:
            while not over.wait(0.001):
                file.write(b"y" * 4096)
                file.flush()

    growing = threading.Thread(target=grow)
    growing.start()
    try:
        done = pack(home, format)
    finally:
        over.set()
        growing.join(timeout=10)
    assert done.last["ok"]
    (there := tmp_path / "there").mkdir()
    assert unpack(there, done.written, format).last["ok"]
    assert (there / "log").stat().st_size >= 8 << 20


@FORMATS
def test_a_file_that_shrinks_meanwhile_breaks_the_archive_off(tmp_path: Path, format: str) -> None:
    (home := tmp_path / "home").mkdir()
    (home / "log").write_bytes(os.urandom(8 << 20))
    with started("archives.pack", home, format=format) as packing:
        assert packing.stdout is not None and packing.stderr is not None
        first = packing.stdout.read(1)  # it cannot get far: nobody reads the rest
        os.truncate(home / "log", 1 << 20)
        archive = first + packing.stdout.read()
        said = packing.stderr.read().decode().splitlines()
    assert json.loads(said[-1]) == {"ok": False, "code": "file_changed"}
    (there := tmp_path / "there").mkdir()
    assert unpack(there, archive, format).last == {"ok": False, "code": "invalid_archive"}
    assert os.listdir(there) == []


def test_directories_that_are_moved_about_meanwhile_do_not_lead_the_way_out(tmp_path: Path) -> None:
    """A walk goes back where it came from, or not at all."""
    (home := tmp_path / "home").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    (home / "a" / "b").mkdir(parents=True)
    (home / "a" / "b" / "large").write_bytes(os.urandom(8 << 20))
    with started("archives.pack", home, format="tar") as packing:
        assert packing.stdout is not None and packing.stderr is not None
        first = packing.stdout.read(1)
        (home / "a" / "b").rename(tmp_path / "outside" / "b")
        archive = first + packing.stdout.read()
        said = packing.stderr.read().decode().splitlines()
    assert json.loads(said[-1]) == {"ok": False, "code": "file_changed"}
    assert b"secret" not in archive


@pytest.mark.parametrize(
    ("path", "code"), [("nowhere", "not_found"), ("../..", "invalid_path"), ("up/x", "invalid_path")]
)
def test_what_is_not_there_or_not_inside_is_not_packed(tmp_path: Path, path: str, code: str) -> None:
    (tmp_path / "up").symlink_to("/etc")
    (tmp_path / "x").write_bytes(b"")
    path = path.replace("up/x", "up/passwd")
    assert pack(tmp_path, path=path).said == [{"ok": False, "code": code}]
