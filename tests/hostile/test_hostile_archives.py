"""Attacks with archives (A60 to A62), with trees that are too deep (A23), on those who search and watch."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import time
import zipfile
from typing import Any

import pytest
import requests
from invariants import Neighbour, Session, eventually, is_problem

TAR_GZ = {"format": "tar.gz"}
DEEP = (
    "import os\nfor i in range(5000):\n    os.mkdir('d'); os.chdir('d')\nopen('needle', 'w').write('needle')"
)
FLOOD = "import os\nfor i in range(100000): os.close(os.open(f'f{i}', os.O_CREAT)); os.unlink(f'f{i}')"


def call(session: Session, method: str, route: str, **options: Any) -> requests.Response:
    return session.tenant.call(method, f"/v1/sessions/{session.id}/files/{route}", **options)


def put(session: Session, archive: Any, format: str = "tar.gz") -> requests.Response:
    return call(session, "PUT", "archive", params={"format": format}, data=archive)


def header(name: str, **facts: Any) -> bytes:
    info = tarfile.TarInfo(name)
    for key, value in facts.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT)


def test_a60_what_must_not_be_unpacked_is_skipped_and_told(session: Session) -> None:
    links = {"type": tarfile.SYMTYPE}
    archive = b"".join(
        (
            header("../x"),
            header("/workspace/../etc/x"),
            header("/tmp/x"),
            header("a", linkname="/", **links),
            header("a/tmp/b"),
            header("proc", linkname="/proc/1", **links),
            header("proc/x", type=tarfile.DIRTYPE),
            header("hard", type=tarfile.LNKTYPE, linkname="/etc/passwd"),
            header("hard2", type=tarfile.LNKTYPE, linkname="a/etc/passwd"),
            header("device", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
            header("fifo", type=tarfile.FIFOTYPE),
            header("root", mode=0o6777, uid=0, gid=0, uname="root"),
            header("dup", size=3) + b"one".ljust(512, b"\0"),
            header("dup", size=3) + b"two".ljust(512, b"\0"),
            bytes(1024),
        )
    )
    answer = put(session, archive, "tar")
    assert answer.status_code == 200, answer.text
    told = {skip["path"]: skip["reason"] for skip in answer.json()["skipped"]}
    outside = dict.fromkeys(["../x", "/workspace/../etc/x", "/tmp/x", "hard"], "outside")
    behind = dict.fromkeys(["a/tmp/b", "proc/x/", "hard2"], "link")
    assert told == {**outside, **behind, "device": "special", "fifo": "special"}
    found = session.run("ls -A /workspace /tmp; cat dup; stat -c ' %a %U' root")["stdout"].split()
    assert found == ["/tmp:", "/workspace:", "a", "dup", "proc", "root", "two", "777", "user"]


def bomb(gigabytes: int) -> bytes:
    """A tar.gz of zeros: compressed once, and repeated as gzip allows."""
    zeros = gzip.compress(bytes(64 << 20), 9)
    size = gigabytes << 30
    return gzip.compress(header("zeros", size=size)) + zeros * (size >> 26) + gzip.compress(bytes(1024))


def test_a61_bombs_stop_at_the_disk_or_the_limit(session: Session, neighbour: Neighbour) -> None:
    small = io.BytesIO()
    with zipfile.ZipFile(small, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("zeros", bytes(80 << 20))
    lying = bytearray(small.getvalue())
    struct.pack_into("<L", lying, lying.find(b"PK\x01\x02") + 24, 10)
    began = time.monotonic()
    with neighbour.undisturbed():
        is_problem(put(session, bomb(10)), "disk_full", "too_large")
        is_problem(put(session, bytes(lying), "zip"), "invalid_archive")
        nested = small.getvalue()
        for _ in range(9):
            nested = zipped_thrice(nested)
        assert put(session, nested, "zip").json()["files"] == 3
    assert time.monotonic() - began < 60
    assert session.run("ls zeros || du -sk . | cut -f1")["exit_code"] == 0
    assert int(session.run("du -sk . | cut -f1")["stdout"]) < 20 << 10, "what it was writing is gone"
    session.is_usable()


def zipped_thrice(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in "abc":
            archive.writestr(f"{name}.zip", content[: 1 << 20])
    return file.getvalue()


@pytest.mark.parametrize("name", ["same", "d/"])
def test_a62_a_million_members_are_too_many(session: Session, neighbour: Neighbour, name: str) -> None:
    kind = tarfile.DIRTYPE if name.endswith("/") else tarfile.FIFOTYPE
    some = gzip.compress(header(name, type=kind) * 10_000)
    with neighbour.undisturbed():
        is_problem(put(session, some * 100 + gzip.compress(bytes(1024))), "too_large")
    session.is_usable()


def test_a23_a_tree_deeper_than_any_path_is_packed_searched_and_watched(session: Session) -> None:
    session.run(["python3", "-c", DEEP], timeout=20)
    answer = call(session, "GET", "archive", params={**TAR_GZ, "path": "d"})
    assert (answer.status_code, answer.headers["X-Archive-Entries"]) == (200, "5000")
    told = call(session, "PUT", "archive", params={**TAR_GZ, "path": "again"}, data=answer.content)
    assert (told.json()["directories"], told.json()["files"]) == (4999, 1)
    found = call(session, "POST", "search", json={"pattern": "needle", "path": "d"}).json()
    assert [match["path"][-9:] for match in found["matches"]] == ["/d/needle"]
    with call(session, "GET", "watch", params={"recursive": "true"}, stream=True) as answer:
        assert any(b"overflow" in line for line in answer.iter_lines())
    assert session.close().status_code == 204


def test_archives_that_nobody_reads_or_finishes_cost_nobody_anything(
    session: Session, neighbour: Neighbour
) -> None:
    session.run("head -c 60000000 /dev/urandom >big", timeout=20)
    with neighbour.undisturbed():
        unread = [call(session, "GET", "archive", stream=True) for _ in range(8)]
        is_problem(call(session, "GET", "archive"), "too_many_streams")
        session.is_usable()
        for answer in unread:
            assert answer.status_code == 200
            answer.close()
        eventually(lambda: room_for_one(session), 10)


def room_for_one(session: Session) -> None:
    answer = call(session, "GET", "archive", stream=True)
    answer.close()
    assert answer.status_code == 200


def test_a_script_of_ours_that_the_user_kills_breaks_its_archive_off(session: Session) -> None:
    """It is a process of the user's: that harms nobody else, and what arrives does not look whole."""
    session.run("head -c 60000000 /dev/zero >big", timeout=20)
    answer = call(session, "GET", "archive", stream=True)
    session.run("pkill -KILL -f archives[.]pack")
    with pytest.raises(requests.RequestException):
        assert answer.content
    session.is_usable()


def test_evil_patterns_and_giant_lines_are_given_up_in_time(session: Session, neighbour: Neighbour) -> None:
    session.run("python3 -c \"print('a' * 5000000)\" >f; printf 'aaaa%.0s' $(seq 50) >g; echo b >>g")
    began = time.monotonic()
    with neighbour.undisturbed():
        told = call(session, "POST", "search", json={"pattern": "(a|aa|a*)*$b", "regex": True}).json()
    assert told["truncated"] is True and time.monotonic() - began < 20
    told = call(session, "POST", "search", json={"pattern": "a", "context": 20, "limit": 2000}).json()
    assert all(len(match["text"]) <= 500 for match in told["matches"])
    session.is_usable()


def test_a_watch_that_is_not_read_while_a_program_floods_it(session: Session, neighbour: Neighbour) -> None:
    watch = call(session, "GET", "watch", stream=True, headers={"Accept": "application/x-ndjson"})
    with neighbour.undisturbed(), watch:
        lines = watch.iter_lines()
        assert json.loads(next(lines))["type"] == "start"
        before = memory_of_the_guest(session)
        session.run(["python3", "-c", FLOOD], timeout=30)
        assert memory_of_the_guest(session) - before < 16 << 20
        assert any(json.loads(line)["type"] == "overflow" for line in lines)
    session.is_usable()


def memory_of_the_guest(session: Session) -> int:
    return int(session.beside("awk '/VmRSS/ {print $2}' /proc/1/status")["stdout"]) << 10
