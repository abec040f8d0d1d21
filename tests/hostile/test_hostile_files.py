"""Attacks through the files API: paths, links, odd files and names, lying bodies (A21-A23, A45, A50-A58)."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from itertools import chain
from typing import Any
from urllib.parse import quote_from_bytes, unquote

import requests
from invariants import Neighbour, Session, eventually, is_problem, tells_no_secret
from stack import Stack

_MANY_FILES = """
import os
try:
    for number in range(30000):
        os.close(os.open('m/%06d' % number, os.O_CREAT | os.O_WRONLY))
except OSError as exc:
    print(exc.errno)
"""
_DEEP = "import os\nfor _ in range(5000):\n    os.mkdir('d'); os.chdir('d')"


def call(session: Session, method: str, path: str = "", **options: Any) -> requests.Response:
    return session.tenant.call(method, f"/v1/sessions/{session.id}/files{path}", **options)


def content(session: Session, path: str, **options: Any) -> requests.Response:
    return call(session, "GET", f"/content?path={path}", **options)


def reaching(session: Session, path: str) -> Iterator[requests.Response]:
    """All ways to reach what a path leads to; `path` is percent-encoded already."""
    text = unquote(path)
    yield call(session, "GET", f"/content?path={path}")
    yield call(session, "GET", f"?path={path}")
    yield call(session, "GET", f"/stat?path={path}&follow=true")
    yield call(session, "PUT", f"/content?path={path}", data=b"planted")
    yield call(session, "POST", "/mkdir", json={"path": text})
    yield call(session, "POST", "/copy", json={"source": text, "destination": "stolen"})
    yield call(session, "POST", "/edit", json={"path": text, "old": "r", "new": "x"})


def changing(session: Session, path: str) -> Iterator[requests.Response]:
    """All ways to change what a path names."""
    text = unquote(path)
    yield call(session, "POST", "/move", json={"source": text, "destination": "stolen"})
    yield call(session, "POST", "/move", json={"source": "mine", "destination": text, "overwrite": True})
    yield call(session, "POST", "/copy", json={"source": "mine", "destination": text, "overwrite": True})
    yield call(session, "DELETE", f"?path={path}&recursive=true")


def test_a50_no_path_leads_out(session: Session) -> None:
    session.run("echo mine > mine")
    out = [
        "../../etc/shadow",
        "/etc/shadow",
        "%2e%2e%2fetc%2fpasswd",
        "/workspace/../proc/1/environ",
        "",
        "a%00b",
        "%2Fproc%2Fself%2Fenviron",
        "x" * 5000,
        "//etc/passwd",
        "/workspace/../../run/sandbox/secret",
    ]
    for path in out:
        for answer in chain(reaching(session, path), changing(session, path)):
            assert is_problem(answer)["code"] in ("invalid_path", "invalid_request"), (path, answer.text)
    for path in ("..%252fetc%252fpasswd", "....//etc/passwd", "..%5c..%5cetc%5cpasswd"):  # names, if odd ones
        assert is_problem(content(session, path), "not_found")
    assert session.run("ls -A")["stdout"] == "mine\n"


def test_a51_a52_links_lead_nowhere_outside(session: Session) -> None:
    """Whatever a link says: not to the container's own files, and least of all to the guest's memory."""
    targets = (
        "/etc/passwd",
        "/proc/self/environ",
        "/proc/self/mem",
        "/proc/1/mem",
        "/proc/1/environ",
        "/run/sandbox/secret",
        "/",
        "/proc/self/fd/3",
        "/proc/self/task/1/maps",
        "/opt/sandbox",
    )
    made = "; ".join(f"ln -s {target} l{number}" for number, target in enumerate(targets))
    session.run(f"echo mine > mine; {made}; ln -s b a; ln -s a b")
    links = [f"l{number}" for number in range(len(targets))]
    for name in [*links, "l6/etc/passwd", "l9/guest", "a"]:
        for answer in reaching(session, name):
            assert is_problem(answer)["code"] in ("invalid_path", "permission_denied"), (name, answer.text)
    for name in ("l6/etc/passwd", "l9/guest", "l6/workspace"):
        for answer in changing(session, name):
            assert is_problem(answer, "invalid_path")
    for answer in (call(session, "PUT", "/content?path=l6/tmp2/y", data=b"x"), content(session, "l6/y")):
        assert is_problem(answer, "invalid_path", "not_found")
    for name in [*links, "a", "b"]:
        assert call(session, "DELETE", f"?path={name}&recursive=true").status_code == 204  # the link itself
    assert session.run("ls -A; head -c4 /etc/passwd")["stdout"] == "mine\nroot"
    session.is_usable()


def test_a51_a_link_that_changes_all_the_time_never_leads_out(session: Session) -> None:
    """Between looking and opening there is no moment to change it in."""
    swap = "mkdir -p d; echo mine > d/f; echo mine > f0; while :; do ln -sfn /etc s; ln -sfn d s; done"
    session.run(f"({swap}) >/dev/null 2>&1 & sleep 0.3", shell=None)
    for _ in range(150):
        answer = content(session, "s/passwd")
        assert is_problem(answer)["code"] in ("invalid_path", "not_found", "permission_denied")
    session.is_usable()


def test_a53_two_names_of_one_file(session: Session) -> None:
    assert session.run("ln /etc/passwd p")["exit_code"] != 0
    session.run("echo one > a; ln a b")
    assert call(session, "PUT", "/content?path=a", data=b"two").status_code == 200
    assert call(session, "DELETE", "?path=a").status_code == 204
    assert content(session, "b").content == b"one\n"


def test_a54_what_is_no_file_holds_nobody(session: Session) -> None:
    session.run("mkfifo f; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('s')\"; ln -s f l")
    for name in ("f", "s", "l"):
        began = time.monotonic()
        is_problem(content(session, name), "not_a_regular_file")
        is_problem(call(session, "PUT", f"/content?path={name}", data=b"x"), "not_a_regular_file")
        assert call(session, "GET", f"/stat?path={name}").status_code == 200
        assert time.monotonic() - began < 1
    assert [entry["type"] for entry in call(session, "GET").json()["entries"]] == [
        "other",
        "symlink",
        "other",
    ]


def test_a55_odd_names_go_round(session: Session) -> None:
    names = [
        b"new\nline",
        b"tab\t",
        b"\r\nSet-Cookie: x=1",
        "\u202etxt.exe".encode(),
        b"-rf",
        b"*",
        b"n" * 255,
        b"\xff\xfe",
        b" lead",
        b"trail ",
        "\u00e9".encode(),
        "e\u0301".encode(),
        b'"; filename="x.html',
        b"\x1b]0;pwn\x07",
        b"\x7f",
    ]
    for name in names:
        made = call(session, "PUT", f"/content?path={quote_from_bytes(name, safe='')}", data=name)
        assert made.status_code == 201, made.text
    found = call(session, "GET").json()["entries"]
    assert len(found) == len(names)
    for entry in found:
        path = {"path_base64": entry["path_base64"]} if "path_base64" in entry else {"path": entry["path"]}
        got = call(session, "GET", "/content", params=path)
        assert got.content in names and "Set-Cookie" not in got.headers
        disposition = got.headers["Content-Disposition"]
        assert disposition.startswith('attachment; filename="') and disposition.count('"') == 2
        assert call(session, "DELETE", "", params=path).status_code == 204
    assert call(session, "GET").json()["entries"] == []


def raw(session: Session, head: str, *pieces: bytes, wait: float = 10) -> bytes:
    """What the server says to a PUT that is not what it should be."""
    stack = session.tenant.stack
    start = f"PUT /v1/sessions/{session.id}/files/content?path=d/up HTTP/1.1\r\nHost: localhost\r\n"
    with socket.create_connection(("127.0.0.1", stack.port), timeout=wait) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(f"{start}X-API-Key: {session.tenant.key}\r\n{head}\r\n\r\n".encode())
            for piece in pieces:
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
        received = b""
        with contextlib.suppress(OSError):
            while chunk := connection.recv(65536):
                received += chunk
    return received


def test_a56_a_body_that_lies_leaves_nothing(session: Session) -> None:
    for head, body in (
        ("Content-Length: 1000", b"too short"),
        ("Content-Length: 99999999999999", b"far too short"),
        ("Content-Length: -1", b"x"),
        ("Transfer-Encoding: chunked", b"5\r\nhello\r\n"),
        ("Transfer-Encoding: chunked", b"zz\r\nhello\r\n0\r\n\r\n"),
        ("Transfer-Encoding: chunked", b"ffffffffffffffff\r\nhello"),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n"),
        ("Content-Length: 5\r\nContent-Length: 6", b"hello!"),
    ):
        said = raw(session, head, body)
        assert said[:13] in (b"HTTP/1.1 400 ", b"HTTP/1.1 413 "), (head, said[:200])
        tells_no_secret(said.decode("latin-1"))
    eventually(lambda: _is_empty(session), 5)


def _is_empty(session: Session) -> None:
    assert session.beside("ls -A")["stdout"] == ""


def test_a56_endless_bodies_end_at_a_limit_and_hold_nobody_up(
    session: Session, neighbour: Neighbour, stack: Stack
) -> None:
    """Chunks without end, with a key and with none: memory stays flat, and the neighbour is answered."""
    piece = b"100000\r\n" + bytes(1 << 20) + b"\r\n"
    with neighbour.undisturbed():
        said = raw(session, "Transfer-Encoding: chunked", *([piece] * 300), wait=30)
        assert said == b"" or said[8:13] in (b" 413 ", b" 507 "), said[:200]
        floods = [threading.Thread(target=_flood_without_key, args=(stack,)) for _ in range(4)]
        for flood in floods:
            flood.start()
        for flood in floods:
            flood.join(30)
    assert session.run("ls -A")["stdout"] == ""


def _flood_without_key(stack: Stack) -> None:
    with socket.create_connection(("127.0.0.1", stack.port), timeout=10) as connection:
        head = b"PUT /v1/sessions/x/files/content?path=a HTTP/1.1\r\nHost: localhost\r\n"
        over = time.monotonic() + 4
        with contextlib.suppress(OSError):
            connection.sendall(head + b"Content-Length: 99999999999\r\n\r\n")
            while time.monotonic() < over:
                connection.send(bytes(1 << 20))


def test_a57_files_that_change_while_they_are_read(session: Session) -> None:
    """The length is honest or the connection is cut; nothing hangs."""
    session.run("head -c 20000000 /dev/urandom > f; cp f g; cp f h; cp f i")
    whole = session.run("sha256sum < f")["stdout"].split()[0]
    for name, change in (
        ("f", "head -c 9000000 /dev/zero >> f"),
        ("g", "truncate -s 1000 g"),
        ("h", "echo new > n; mv n h"),
        ("i", "rm i"),
    ):
        answer = content(session, name, stream=True, timeout=20)
        pieces = answer.iter_content(1 << 16)
        got = [next(pieces)]
        session.run(change)
        try:
            got += pieces
            assert hashlib.sha256(b"".join(got)).hexdigest() == whole
        except (requests.exceptions.ChunkedEncodingError, requests.ConnectionError):
            assert name == "g"
        finally:
            answer.close()


def test_a58_no_download_is_something_that_a_browser_runs(session: Session) -> None:
    for name in ("x.html", "x.svg", "x.xml", "x.js", "x.xhtml", "x.html%0d%0a", "x.pdf", "x.mhtml"):
        call(session, "PUT", f"/content?path={name}", data=b"<script>alert(1)</script>")
        got = content(session, name)
        assert got.status_code == 200
        assert got.headers["Content-Disposition"].startswith("attachment;")
        assert got.headers["X-Content-Type-Options"] == "nosniff"
        assert got.headers["Content-Security-Policy"].startswith("sandbox;")
        assert got.headers["Content-Type"] in ("application/octet-stream", "application/pdf")


def test_a21_a_sparse_terabyte_is_no_terabyte_of_traffic(session: Session, neighbour: Neighbour) -> None:
    session.run("truncate -s 99M s")
    with neighbour.undisturbed():
        answer = content(session, "s", stream=True)
        assert int(answer.headers["Content-Length"]) == 99 << 20
        answer.close()
        assert call(session, "POST", "/copy", json={"source": "s", "destination": "t"}).status_code in (
            200,
            507,
        )
    session.is_usable()


def test_a22_very_many_files_are_listed_within_two_seconds_a_page(session: Session) -> None:
    session.run(["python3", "-c", "import os; os.mkdir('m')" + _MANY_FILES], timeout=60)
    seen, cursor = 0, ""
    took: list[float] = []
    while cursor is not None and len(took) < 4:
        began = time.monotonic()
        page = call(session, "GET", f"?path=m&limit=5000&cursor={cursor}").json()
        took.append(time.monotonic() - began)
        seen, cursor = seen + len(page["entries"]), page["next_cursor"]
    assert seen == 20_000
    assert statistics.median(took) < 2, took
    assert call(session, "DELETE", "?path=m&recursive=true").status_code == 204


def test_a23_five_thousand_nested_directories(session: Session) -> None:
    session.run(["python3", "-c", _DEEP], timeout=60)
    assert len(call(session, "GET", "?depth=64").json()["entries"]) == 64
    assert call(session, "DELETE", "?path=d&recursive=true").status_code == 204
    assert call(session, "GET").json()["entries"] == []


def test_a45_a_user_who_stops_everything_stops_no_download(session: Session) -> None:
    session.run("head -c 20000000 /dev/urandom > f")
    session.run("(while :; do kill -STOP -1; done) >/dev/null 2>&1 & sleep 0.2", shell=None)
    answer = content(session, "f", timeout=20)
    assert answer.status_code == 200 and len(answer.content) == 20_000_000
    assert call(session, "PUT", "/content?path=g", data=os.urandom(1 << 20)).status_code == 201


def test_a01_files_are_read_while_a_fork_bomb_lives(session: Session) -> None:
    session.run("echo here > f")
    session.execute("bomb() { bomb | bomb & }; bomb; sleep 3", shell=None, background=True)
    time.sleep(0.5)
    assert content(session, "f").content == b"here\n"
    assert call(session, "PUT", "/content?path=g", data=b"x").status_code == 201


def test_a22_many_who_list_very_much_hold_up_nobody(session: Session, neighbour: Neighbour) -> None:
    make = "import os\nfor n in range(5000): os.close(os.open('%05d' % n, os.O_CREAT))"
    session.run(["python3", "-c", make], timeout=60)
    seen: list[int] = []

    def ask() -> None:
        answer = call(session, "GET", "?limit=5000")
        seen.append(len(answer.content) if answer.status_code == 200 else 0)

    with neighbour.undisturbed():
        threads = [threading.Thread(target=ask) for _ in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=100)
    assert len(seen) == 50 and min(seen) > 0 and max(seen) < 1_300_000
