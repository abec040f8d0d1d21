"""Files sent ahead: kept whole or not at all, counted, swept, and nobody else's."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from web_in_process import Web
from werkzeug.test import TestResponse

from server import instance as installation
from server.config import Config
from server.errors import IdempotencyConflict, Invalid, SandboxError
from server.keys import new_key
from server.store import Store
from server.upload_errors import TooManyUploads, UploadNotFound
from server.upload_rows import SMALLEST, Upload, UploadRows
from server.uploads import Arrival, TooLarge, TooSlow, Uploads, distinct, safe_name, sweep

MIB = 1 << 20
DAY = 86400.0


@dataclass
class Dock:
    """Where uploads arrive, with a clock that is set by hand."""

    config: Config
    rows: UploadRows
    now: list[float]

    @property
    def uploads(self) -> Uploads:
        return Uploads(self.config, self.rows, lambda: self.now[0])

    def begin(self, tenant: str = "a", length: int | None = None, key: str | None = None) -> Arrival:
        return self.uploads.receive(tenant, length, key)

    def send(self, *files: bytes, tenant: str = "a", key: str | None = None, name: str = "f") -> list[Upload]:
        arrival = self.begin(tenant, None, key)
        try:
            for data in files:
                arrival.open(name, "")
                arrival.write(data)
                arrival.close()
            return arrival.keep()
        finally:
            arrival.drop()

    def on_disk(self) -> set[str]:
        return set(os.listdir(self.config.uploads_dir))


@pytest.fixture
def dock(config: Config, store: Store) -> Dock:
    installation.prepare(config)
    return Dock(replace(config, uploads=4 * MIB, upload_limit=3 * MIB), UploadRows(store), [1000.0])


def test_what_was_sent_is_found_with_its_facts_and_its_bytes(dock: Dock) -> None:
    [kept] = dock.send(b"hello", name="greeting.txt")
    assert dock.uploads.find("a", kept.id) == kept
    assert (kept.name, kept.mime, kept.size) == ("greeting.txt", "text/plain", 5)
    assert (kept.sha256, kept.expires_at) == (hashlib.sha256(b"hello").hexdigest(), 1000 + DAY)
    assert dock.uploads.path(kept.id).read_bytes() == b"hello"


def test_another_tenants_upload_is_as_unknown_as_one_that_never_was(dock: Dock) -> None:
    [kept] = dock.send(b"x")
    for tenant, upload in (("b", kept.id), ("a", "f" * 32), ("a", "../store/store.db"), ("a", "")):
        with pytest.raises(UploadNotFound):
            dock.uploads.find(tenant, upload)
        with pytest.raises(UploadNotFound):
            dock.uploads.delete(tenant, upload)
    with pytest.raises(Invalid, match=kept.id):
        dock.uploads.wanted("b", [kept.id], "files")
    assert dock.uploads.list("b", "", 10) == ([], None)


def test_deleting_makes_room(dock: Dock) -> None:
    [kept] = dock.send(b"x" * 3 * MIB)
    with pytest.raises(TooManyUploads):
        dock.send(b"x" * 2 * MIB)
    dock.uploads.delete("a", kept.id)
    assert dock.on_disk() == set()
    dock.send(b"x" * 2 * MIB)


def test_a_full_tenant_holds_up_no_other(dock: Dock) -> None:
    dock.send(b"x" * 3 * MIB)
    assert dock.send(b"x" * 3 * MIB, tenant="b")


def test_what_does_not_fit_leaves_nothing_behind(dock: Dock) -> None:
    for files in ([b"x" * (3 * MIB + 1)], [b"x" * 3 * MIB, b"y" * 2 * MIB]):
        with pytest.raises((TooLarge, TooManyUploads)):
            dock.send(*files)
        assert (dock.on_disk(), dock.rows.all()) == (set(), {})
    assert dock.send(b"x" * 3 * MIB, b"y" * (MIB - SMALLEST)), "nothing is counted of what was refused"


def test_a_told_length_is_reserved_before_a_byte_has_come(dock: Dock) -> None:
    first = dock.begin(length=3 * MIB)
    with pytest.raises(TooManyUploads) as refused:
        dock.begin(length=2 * MIB)
    assert refused.value.extras == {"limit": "uploads", "allowed": 4 * MIB}
    first.drop()
    dock.begin(length=2 * MIB).drop()


def test_the_quota_holds_however_many_ask_at_once(dock: Dock) -> None:
    let_in: list[Arrival] = []

    def ask() -> None:
        try:
            let_in.append(dock.begin(length=MIB))
        except TooManyUploads:
            return

    askers = [threading.Thread(target=ask) for _ in range(12)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(timeout=30)
    assert len(let_in) == 4


def test_small_files_count_for_what_they_take(dock: Dock) -> None:
    """Otherwise a tenant could fill the table and the directory with empty ones."""
    most = 4 * MIB // SMALLEST
    assert len(dock.send(*[b""] * most)) == most
    with pytest.raises(TooManyUploads):
        dock.send(b"")


def test_the_same_key_and_bytes_give_the_same_uploads_and_take_no_room(dock: Dock) -> None:
    first = dock.send(b"x" * 3 * MIB, b"y", key="k")
    for _ in range(3):
        assert dock.send(b"x" * 3 * MIB, b"y", key="k") == first
    assert dock.on_disk() == {one.id for one in first}
    assert dock.send(b"z", key="k", tenant="b"), "another tenant's key is another key"


@pytest.mark.parametrize("again", [(b"z",), (b"y", b"y"), ()], ids=["other bytes", "more files", "none"])
def test_the_same_key_for_other_bytes_is_refused(dock: Dock, again: tuple[bytes, ...]) -> None:
    first = dock.send(b"y", key="k")
    with pytest.raises((IdempotencyConflict, Invalid)):
        dock.send(*again, key="k")
    assert dock.on_disk() == {first[0].id}


def test_two_calls_of_one_key_at_once_keep_one_file(dock: Dock) -> None:
    arrivals = [dock.begin(key="k"), dock.begin(key="k")]
    for arrival in arrivals:
        arrival.open("f", "")
        arrival.write(b"same")
        arrival.close()
    kept = [arrival.keep() for arrival in arrivals]
    for arrival in arrivals:
        arrival.drop()
    assert kept[0] == kept[1]
    assert dock.on_disk() == {kept[0][0].id}


def test_a_key_is_good_again_when_its_uploads_are_gone(dock: Dock) -> None:
    [first] = dock.send(b"x", key="k")
    dock.now[0] += DAY + 1
    [second] = dock.send(b"y", key="k")
    assert second.id != first.id


def test_what_is_too_old_is_gone_at_once_and_swept_soon(dock: Dock) -> None:
    [old] = dock.send(b"x" * 3 * MIB)
    dock.now[0] += DAY - 1
    [young] = dock.send(b"y")
    dock.now[0] += 2
    with pytest.raises(UploadNotFound):
        dock.uploads.find("a", old.id)
    assert dock.send(b"x" * 3 * MIB), "it counts no more"
    sweep(dock.config, dock.rows, dock.now[0])
    assert old.id not in dock.on_disk()
    assert dock.uploads.find("a", young.id) == young


def test_whatever_a_crash_leaves_is_swept(dock: Dock) -> None:
    """In the middle of a file, between two files, before the answer: nothing was told to anybody."""
    [kept] = dock.send(b"kept", key="k")
    arrivals = []
    for stage in range(4):
        arrivals.append(arrival := dock.begin(length=100))
        if stage > 0:
            arrival.open("f", "")
        if stage > 1:
            arrival.write(b"x")
        if stage > 2:
            arrival.close()
    (dock.config.uploads_dir / ("e" * 32)).write_bytes(b"nobody's")
    sweep(dock.config, dock.rows, dock.now[0])
    assert len(dock.on_disk()) == 4, "what may still be arriving is left alone"
    dock.now[0] += 601
    sweep(dock.config, dock.rows, dock.now[0])
    assert (dock.on_disk(), dock.rows.all()) == ({kept.id}, {kept.id: True})
    for arrival in arrivals:
        arrival.drop()


def test_a_row_without_its_file_is_swept(dock: Dock) -> None:
    [kept] = dock.send(b"x")
    dock.uploads.path(kept.id).unlink()
    sweep(dock.config, dock.rows, dock.now[0])
    with pytest.raises(UploadNotFound):
        dock.uploads.find("a", kept.id)


def test_who_sends_slowly_is_not_swept_and_who_falls_silent_keeps_nothing(dock: Dock) -> None:
    slow = dock.begin()
    slow.open("f", "")
    for _ in range(30):
        dock.now[0] += 100
        slow.write(b"x")
        sweep(dock.config, dock.rows, dock.now[0])
    dock.now[0] += 601
    sweep(dock.config, dock.rows, dock.now[0])
    with pytest.raises(TooSlow):
        slow.write(b"x")
    slow.drop()
    assert dock.on_disk() == set()


def test_the_list_is_told_in_pages(dock: Dock) -> None:
    sent = []
    for number in range(5):
        dock.now[0] += 1
        sent += dock.send(b"%d" % number)
    first, cursor = dock.uploads.list("a", "", 3)
    second, last = dock.uploads.list("a", cursor or "", 3)
    assert (first + second, last) == (sent, None)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("report.pdf", "report.pdf"),
        ("/etc/passwd", "passwd"),
        ("..\\..\\boot.ini", "boot.ini"),
        ("a/../..", "file"),
        ("..", "file"),
        ("", "file"),
        (" . ", "file"),
        ("a\r\nSet-Cookie: x\0", "aSet-Cookie: x"),
        ("in\u202egpj.exe", "ingpj.exe"),
        ("naïve ☃ 😀.txt", "naïve ☃ 😀.txt"),
        ("👩‍🔬.md", "👩‍🔬.md"),
        (".bashrc", ".bashrc"),
        ("-rf", "-rf"),
        ("x" * 300 + ".tar", "x" * 251 + ".tar"),
        ("é" * 200 + ".txt", "é" * 125 + ".txt"),
        ("x." + "y" * 300, "x." + "y" * 253),
    ],
)
def test_names_are_made_safe(given: str, kept: str) -> None:
    assert safe_name(given) == kept
    assert len(safe_name(given).encode()) <= 255


def test_names_for_one_directory_are_distinct() -> None:
    assert distinct(["a.txt", "b", "a.txt", "a (2).txt", "b", "a.txt"]) == [
        "a.txt",
        "b",
        "a (2).txt",
        "a (2) (2).txt",
        "b (2)",
        "a (3).txt",
    ]
    assert max(len(name.encode()) for name in distinct(["é" * 127] * 12)) <= 255


# Over HTTP.

BOUNDARY = "frontier"


def part(data: bytes, name: str = "file", filename: str | None = "f.txt", **headers: str) -> bytes:
    disposition = f'form-data; name="{name}"' + ("" if filename is None else f'; filename="{filename}"')
    lines = [f"Content-Disposition: {disposition}", *(f"{k}: {v}" for k, v in headers.items())]
    return f"--{BOUNDARY}\r\n".encode() + "\r\n".join(lines).encode() + b"\r\n\r\n" + data + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()


def post(
    web: Web, body: bytes, kind: str = f"multipart/form-data; boundary={BOUNDARY}", **headers: str
) -> TestResponse:
    given = {"Authorization": f"Bearer {web.key}", **{n.replace("_", "-"): v for n, v in headers.items()}}
    return web.http.post("/upload", data=body, content_type=kind, headers=given)


def test_files_are_sent_listed_shown_and_deleted(web: Web) -> None:
    data = {"file": (io.BytesIO(b"a,b\n"), "data.csv"), "other": (io.BytesIO(b"\0" * 200_000), "x.bin")}
    answer = web.http.post("/upload", data=data, headers={"X-API-Key": web.key})
    assert answer.status_code == 201
    files: list[dict[str, Any]] = answer.get_json()["files"]
    assert [(f["name"], f["size"], f["mime"]) for f in files] == [
        ("data.csv", 4, "text/csv"),
        ("x.bin", 200_000, "application/octet-stream"),
    ]
    assert files[0]["sha256"] == hashlib.sha256(b"a,b\n").hexdigest()
    assert web.get("/v1/uploads").get_json() == {"files": files, "next_cursor": None}
    where = f"/v1/uploads/{files[0]['file_id']}"
    assert web.get(where).get_json() == files[0]
    assert web.http.delete(where, headers={"X-API-Key": web.key}).status_code == 204
    gone, never = web.get(where), web.get("/v1/uploads/" + "f" * 32)
    assert gone.status_code == never.status_code == 404
    assert gone.get_json()["code"] == never.get_json()["code"] == "upload_not_found"


def test_another_tenants_upload_is_a_404_like_any(web: Web) -> None:
    mine = post(web, part(b"x") + END).get_json()["files"][0]["file_id"]
    other = replace(web, key=new_key(web.store, "other", "test", 0))
    theirs, never = other.get(f"/v1/uploads/{mine}"), other.get(f"/v1/uploads/{'0' * 32}")
    assert {**theirs.get_json(), "request_id": ""} == {**never.get_json(), "request_id": ""}
    assert other.http.delete(f"/v1/uploads/{mine}", headers={"X-API-Key": other.key}).status_code == 404


def test_a_repeated_request_gives_the_same_ids_whatever_its_boundary(web: Web) -> None:
    first = post(web, part(b"x") + END, Idempotency_Key="k")
    again = post(
        web,
        (part(b"x") + END).replace(BOUNDARY.encode(), b"other"),
        "multipart/form-data; boundary=other",
        Idempotency_Key="k",
    )
    assert (first.status_code, again.get_json()) == (201, first.get_json())
    assert post(web, part(b"y") + END, Idempotency_Key="k").get_json()["code"] == "idempotency_conflict"


@pytest.mark.parametrize("cut", [1, 3, 65_536, 65_537, 131_071])
def test_bytes_arrive_as_they_are_wherever_the_pieces_are_cut(web: Web, config: Config, cut: int) -> None:
    """Line ends and all but whole boundaries in the data, across the pieces in which it is read."""
    almost = f"\r\n--{BOUNDARY[:-1]}".encode()
    data = b"x" * (cut - 1) + b"\r\r\n\n" + almost + b"\r" * 70_000 + almost + b"\n\r\n--"
    [told] = post(web, part(data) + END).get_json()["files"]
    assert told["sha256"] == hashlib.sha256(data).hexdigest()
    assert (config.uploads_dir / told["file_id"]).read_bytes() == data


MANY = b"".join(part(b"x") for _ in range(10_000)) + END
BAD: dict[str, tuple[int, str, bytes]] = {
    "10,000 parts": (413, "body_too_large", MANY),
    "101 parts": (413, "body_too_large", part(b"x") * 101 + END),
    "endless headers": (413, "body_too_large", part(b"x", X="y" * 2_000_000) + END),
    "an endless preamble": (413, "body_too_large", b"x" * 2_000_000),
    "an endless epilogue": (413, "body_too_large", part(b"x") + END + b"x" * 2_000_000),
    "no parts": (400, "invalid_request", END),
    "nothing": (400, "invalid_request", b""),
    "no end": (400, "invalid_request", part(b"x")),
    "no end of the data": (400, "invalid_request", part(b"x" * 100_000)[:-2]),
    "not even a start": (400, "invalid_request", b"just text"),
    "a field": (400, "invalid_request", part(b"x") + part(b"v", "purpose", None) + END),
    "no disposition": (400, "invalid_request", f"--{BOUNDARY}\r\nX: y\r\n\r\nx\r\n".encode() + END),
    "headers of any bytes": (
        400,
        "invalid_request",
        f"--{BOUNDARY}\r\n".encode() + b"\xff: \xfe\r\n\r\nx" + END,
    ),
}


@pytest.mark.parametrize(("status", "code", "body"), BAD.values(), ids=BAD)
def test_a_body_that_is_no_upload_is_refused_and_leaves_nothing(
    web: Web, config: Config, status: int, code: str, body: bytes
) -> None:
    answer = post(web, body)
    assert (answer.status_code, answer.get_json()["code"]) == (status, code), answer.text
    assert os.listdir(config.uploads_dir) == []
    assert UploadRows(web.store).all() == {}


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("multipart/form-data", "invalid_request"),
        ("multipart/form-data; boundary=", "invalid_request"),
        ("multipart/form-data; boundary=" + "x" * 71, "invalid_request"),
        ("application/json", "unsupported_media_type"),
        ("", "unsupported_media_type"),
    ],
)
def test_what_does_not_say_that_it_is_an_upload_is_refused(web: Web, kind: str, code: str) -> None:
    answer = post(web, part(b"x") + END, kind)
    assert answer.get_json()["code"] == code


def test_parameters_that_are_none_are_named(web: Web) -> None:
    answer = web.http.post("/upload?x=1", headers={"X-API-Key": web.key})
    assert (answer.status_code, answer.get_json()["field"]) == (400, "x")
    assert web.get("/v1/uploads?limit=0").get_json()["field"] == "limit"


def test_without_a_key_nothing_is_taken(web: Web, config: Config) -> None:
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    assert web.http.post("/upload", data=part(b"x") + END, content_type=kind).status_code == 401
    assert os.listdir(config.uploads_dir) == []


def test_the_directory_is_closed_to_others(dock: Dock) -> None:
    [kept] = dock.send(b"x")
    place: Path = dock.config.uploads_dir
    assert (place.stat().st_mode & 0o777, dock.uploads.path(kept.id).stat().st_mode & 0o777) == (0o700, 0o644)


def test_a_disk_without_room_is_told_and_leaves_nothing(dock: Dock) -> None:
    place = dock.config.uploads_dir
    place.rmdir()  # as good as any failure of the disk
    with pytest.raises(SandboxError) as refused:
        dock.send(b"x")
    assert (refused.value.code, dock.rows.all()) == ("store_unavailable", {})
