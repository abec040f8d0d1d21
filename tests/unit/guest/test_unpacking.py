"""Archives from anybody, unpacked below one directory: nothing lands outside, nothing special is made."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import threading
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from scripts import LIMIT, started, unpack

BROKEN = {"ok": False, "code": "invalid_archive"}
TOO_LARGE = {"ok": False, "code": "too_large"}


def member(name: str, content: bytes = b"", **facts: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in facts.items():
        setattr(info, key, value)
    return info, content


def tar(*members: tuple[tarfile.TarInfo, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (home := tmp_path / "home").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"untouched")
    return home


def is_untouched(home: Path) -> bool:
    outside = home.parent / "outside"
    return os.listdir(outside) == ["file"] and (outside / "file").read_bytes() == b"untouched"


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_every_form_of_tar_is_read(home: Path, form: int) -> None:
    name = "d/" * 40 + "n" * 90
    archive = tar(member(name, b"deep", mode=0o640, mtime=1_000_000_000), format=form)
    assert unpack(home, archive).last["files"] == 1
    assert (home / name).read_bytes() == b"deep"
    found = (home / name).stat()
    assert (oct(found.st_mode & 0o7777), found.st_mtime) == ("0o640", 1_000_000_000)


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_a_tar_tells_itself_what_it_is_compressed_with(home: Path, compress: Any) -> None:
    archive = tar(member("a", b"x" * 3_000_000), member("b", os.urandom(700_000)))
    for form in ("tar", "tar.gz") if compress is gzip.compress else ("tar",):
        told = unpack(home, compress(archive), form).last
        assert (told["ok"], told["files"], told["bytes"]) == (True, 2, 3_700_000)
    cut = compress(archive)[:-20]
    assert unpack(home, cut).last == BROKEN


def test_a60_no_member_of_a_tar_lands_outside_and_nothing_special_is_made(home: Path) -> None:
    out = str(home.parent / "outside")
    archive = tar(
        member("../outside/a", b"x"),
        member("a/../../outside/b", b"x"),
        member(f"{out}/c", b"x"),
        member("link", type=tarfile.SYMTYPE, linkname=out),
        member("link/d", b"x"),
        member("link/e", type=tarfile.DIRTYPE),
        member("up", type=tarfile.SYMTYPE, linkname=".."),
        member("up/outside/f", b"x"),
        member("hard", type=tarfile.LNKTYPE, linkname=f"{out}/file"),
        member("hard2", type=tarfile.LNKTYPE, linkname="../outside/file"),
        member("hard3", type=tarfile.LNKTYPE, linkname="link/file"),
        member("hard4", type=tarfile.LNKTYPE, linkname="link"),
        member("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        member("disk", type=tarfile.BLKTYPE, devmajor=8),
        member("fifo", type=tarfile.FIFOTYPE),
        member("setuid", b"#!", mode=0o7755, uid=0, uname="root"),
        member("sticky", type=tarfile.DIRTYPE, mode=0o7000),
        member("good/file", b"good"),
    )
    told = unpack(home, archive).last
    assert (told["files"], told["directories"], told["skipped_count"]) == (4, 2, 13)
    reasons = dict(told["skipped"])
    assert reasons == {
        "../outside/a": "outside",
        "a/../../outside/b": "outside",
        f"{out}/c": "outside",
        "link/d": "link",
        "link/e/": "link",
        "up/outside/f": "link",
        "hard": "outside",
        "hard2": "outside",
        "hard3": "link",
        "hard4": "link",
        "null": "special",
        "disk": "special",
        "fifo": "special",
    }
    assert sorted(os.listdir(home)) == ["good", "link", "setuid", "sticky", "up"]
    assert os.stat(home / "setuid").st_mode == stat.S_IFREG | 0o755
    assert os.stat(home / "sticky").st_mode == stat.S_IFDIR | 0o700
    assert is_untouched(home)


def test_a60_no_member_of_a_zip_lands_outside(home: Path) -> None:
    link, device = zipfile.ZipInfo("link"), zipfile.ZipInfo("device")
    link.create_system = device.create_system = 3
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    device.external_attr = (stat.S_IFCHR | 0o666) << 16
    out = str(home.parent / "outside")
    archive = zipped(
        ("../outside/a", b"x"),
        (f"{out}/b", b"x"),
        (link, out.encode()),
        ("link/c", b"x"),
        (device, b""),
        ("d/", b""),
    )
    told = unpack(home, archive, "zip").last
    assert [reason for _, reason in told["skipped"]] == ["outside", "outside", "link", "special"]
    assert sorted(os.listdir(home)) == ["d", "link"]
    assert is_untouched(home)


def test_of_duplicates_the_last_one_wins_whatever_it_is(home: Path) -> None:
    (home / "old").write_bytes(b"old")
    (home / "to").symlink_to(home.parent / "outside" / "file")
    archive = tar(
        member("a", b"first"),
        member("a", b"second"),
        member("old", b"new"),
        member("to", b"a file now"),
        member("b", type=tarfile.SYMTYPE, linkname="a"),
        member("b", type=tarfile.DIRTYPE),
        member("b/c", b"in it"),
        member("h", b"something else"),
        member("h", type=tarfile.LNKTYPE, linkname="a"),
        member("h", type=tarfile.LNKTYPE, linkname="a"),
        member("b", b"no file in place of a directory"),
    )
    told = unpack(home, archive).last
    assert told["skipped"] == [["b", "exists"]]
    contents = {name: (home / name).read_bytes() for name in ("a", "old", "to", "b/c", "h")}
    assert contents == {"a": b"second", "old": b"new", "to": b"a file now", "b/c": b"in it", "h": b"second"}
    assert (home / "a").stat().st_nlink == 2
    assert sorted(os.listdir(home)) == ["a", "b", "h", "old", "to"]
    assert is_untouched(home)


def test_the_directory_is_made_if_it_is_missing_but_never_through_a_link_that_leads_out(home: Path) -> None:
    (home / "out").symlink_to(home.parent / "outside")
    archive = tar(member("f", b"x"))
    assert unpack(home, archive, path="x/y/z").last["files"] == 1
    assert (home / "x/y/z/f").exists()
    assert unpack(home, archive, path="out/new").last == {"ok": False, "code": "invalid_path"}
    assert unpack(home, archive, path="x/y/z/f").last == {"ok": False, "code": "not_a_directory"}
    assert unpack(home, archive, path="x/y/z/f/g").last == {"ok": False, "code": "not_a_directory"}
    assert is_untouched(home)


def zeros(size: int) -> bytes:
    """A tar of one member of so many zeros, compressed, without ever being held."""
    info = tarfile.TarInfo("zeros")
    info.size = size
    engine = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = engine.compress(info.tobuf(tarfile.GNU_FORMAT))
    piece = bytes(1 << 20)
    for _ in range(size >> 20):
        packed += engine.compress(piece)
    return packed + engine.compress(bytes(1024)) + engine.flush()


def test_a61_a_bomb_stops_at_the_limit_and_what_it_was_writing_is_gone(home: Path) -> None:
    assert unpack(home, zeros(256 << 20), "tar.gz").last == TOO_LARGE
    assert os.listdir(home) == []
    assert unpack(home, zipped(("zeros", bytes(LIMIT + 1))), "zip").last == TOO_LARGE
    assert os.listdir(home) == []


def test_a61_a_bomb_in_a_bomb_is_a_file_in_a_directory(home: Path) -> None:
    nested = zipped(("zeros", bytes(8 << 20)))
    for _ in range(9):
        nested = zipped(*((f"{name}.zip", nested) for name in "abc"))[: 8 << 20]
    assert unpack(home, nested, "zip").last["files"] == 3


@pytest.mark.parametrize("claimed", [0, 10, (1 << 32) - 2])
def test_a61_a_zip_that_lies_about_its_sizes_is_broken_or_too_large(home: Path, claimed: int) -> None:
    archive = bytearray(zipped(("zeros", bytes(1 << 20))))
    central = archive.find(b"PK\x01\x02")
    struct.pack_into("<L", archive, central + 24, claimed)
    assert unpack(home, bytes(archive), "zip").last in (BROKEN, TOO_LARGE)
    assert os.listdir(home) == []


@pytest.mark.parametrize("format", ["tar", "zip"])
def test_a62_more_members_than_may_be_are_too_large(home: Path, format: str) -> None:
    if format == "tar":
        one = member("same", type=tarfile.FIFOTYPE)[0].tobuf(tarfile.GNU_FORMAT)
        told = unpack(home, gzip.compress(one * 100_001 + bytes(1024), 1), limit=1 << 30).last
    else:
        end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 47 * 100_001, 0, 0)
        one = struct.pack("<4s6H3L5H2L", b"PK\x01\x02", *[0] * 6, 0, 0, 0, 1, *[0] * 6) + b"a"
        told = unpack(home, one * 100_001 + end, "zip").last
    assert told == TOO_LARGE


@pytest.mark.parametrize("format", ["tar", "tar.gz", "zip"])
def test_what_is_no_archive_or_only_half_of_one_is_broken(home: Path, format: str) -> None:
    content = os.urandom(5000)
    whole = {"tar": tar(member("a", content)), "zip": zipped(("a", content))}
    whole["tar.gz"] = gzip.compress(whole["tar"])
    archive = whole[format]
    wrong = bytearray(archive)
    wrong[200 if format == "tar" else 2000] ^= 0xFF  # of its head, or of what has a sum
    cases = [
        b"",
        b"x",
        bytes(3),
        os.urandom(5000),
        archive[: len(archive) // 2],
        archive[:700],
        bytes(wrong),
        b"\x1f\x8b" * 600,
    ]
    for case in cases:
        assert unpack(home, case, format).last == BROKEN, case[:20]
    assert not any(name.startswith(".") for name in os.listdir(home))


def test_headers_of_nonsense_are_broken_and_nothing_worse(home: Path) -> None:
    """Sums that fit, and numbers that do not."""
    good = bytearray(tarfile.TarInfo("name").tobuf(tarfile.GNU_FORMAT))
    for at, field in (
        (124, b"99999999999"),
        (124, b"-0000000001"),
        (124, b"\xff" * 12),
        (124, b"\x80" + b"\xff" * 11),
    ):
        header = bytearray(good)
        header[at : at + len(field)] = field
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        assert unpack(home, bytes(header) + bytes(1024)).last == BROKEN, field
    for data in (b"x", b"5 a=b\n", b"999 path=x\n", b"-6 a=b\n", b"11 size=-1\n", b"9" * 30 + b" a=b\n"):
        info = tarfile.TarInfo("pax")
        info.type, info.size = tarfile.XHDTYPE, len(data)
        archive = info.tobuf(tarfile.USTAR_FORMAT) + data.ljust(512, b"\0") + bytes(good) + bytes(1024)
        assert unpack(home, archive).last == BROKEN, data
    assert os.listdir(home) == []


def test_names_that_no_file_can_have_are_skipped(home: Path) -> None:
    archive = tar(
        member("n" * 300, b"x"), member("good", b"x"), member("s", type=tarfile.SYMTYPE, linkname="")
    )
    told = unpack(home, archive).last
    assert (told["files"], [reason for _, reason in told["skipped"]]) == (1, ["invalid_name"] * 2)


def test_what_is_told_of_skipped_members_is_bounded(home: Path) -> None:
    odd = ("\udcff" * 900 + "/../x", b"")
    archive = tar(
        *(member(f"../{'n' * 90}{i}") for i in range(5000)), member(*odd), format=tarfile.GNU_FORMAT
    )
    told = unpack(home, archive).last
    assert told["skipped_count"] == 5001 and 1 < len(told["skipped"]) <= 100
    assert len(str(told)) < 50_000


def test_directories_swapped_for_links_meanwhile_lead_nothing_out(home: Path) -> None:
    """The attack that a check before the use loses: what is checked here is what is used."""
    archive = tar(*(member(f"d{i % 50}/f{i}", b"x") for i in range(5_000)))
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for i in range(50):
                try:
                    os.rename(home / f"d{i}", home / f"was{i}")
                    os.symlink(home.parent / "outside", home / f"d{i}")
                    os.unlink(home / f"d{i}")
                    os.rename(home / f"was{i}", home / f"d{i}")
                except OSError:
                    continue

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        told = unpack(home, archive).last
    finally:
        over.set()
        swapping.join(timeout=10)
    assert told["ok"]
    assert is_untouched(home)


def test_a_caller_that_goes_leaves_no_half_written_file(home: Path) -> None:
    """Its stdin ends in the middle: what was being written is removed."""
    archive = tar(member("large", os.urandom(4 << 20)))
    with started("archives.unpack", home, format="tar") as unpacking:
        unpacking.communicate(archive[: 2 << 20], timeout=30)
    assert os.listdir(home) == []


def test_what_was_made_for_an_archive_that_never_came_is_unmade(home: Path) -> None:
    (home / "there").mkdir()
    archive = tar(member("small", b"x"), member("large", os.urandom(4 << 20)))
    for path in ("there", "there/new/deeper", "a/b"):
        assert unpack(home, archive[:300], path=path).last == BROKEN
    assert sorted(os.listdir(home)) == ["there"] and os.listdir(home / "there") == []
    assert unpack(home, archive[: 2 << 20], path="a/b").last == BROKEN
    assert os.listdir(home / "a" / "b") == ["small"], "what was unpacked before stays"
