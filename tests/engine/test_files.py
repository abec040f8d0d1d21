"""Files over HTTP, in a real sandbox: up, down, conditions, ranges, URLs without a key, and their ends."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote_from_bytes

import pytest
import requests
from plain import Open, Session
from stack import Stack

BIG = os.urandom(1 << 20) * 64


def call(session: Session, method: str, path: str = "", **options: Any) -> requests.Response:
    return session.stack.call(method, f"/v1/sessions/{session.id}/files{path}", **options)


def put(session: Session, path: str, data: Any = b"", **headers: str) -> requests.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return call(session, "PUT", f"/content?path={path}", data=data, headers=named)


def get(session: Session, path: str, **headers: str) -> requests.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return call(session, "GET", f"/content?path={path}", headers=named)


def code(answer: requests.Response) -> str:
    assert answer.headers["Content-Type"] == "application/problem+json", answer.text[:300]
    return str(answer.json()["code"])


def slowly(data: bytes, piece: int = 1 << 16) -> Iterator[bytes]:
    for at in range(0, len(data), piece):
        yield data[at : at + piece]


@pytest.mark.parametrize("moment", ["99999999999999", "253402300799", "-62135596800", "-99999999999"])
def test_a_file_of_any_age_is_listed_read_and_moved(session: Session, moment: str) -> None:
    """Its owner may set any time that the filesystem can hold; the nearest date is told."""
    session.output(f"mkdir -p aged; echo old > aged/x; touch -d @{moment} aged/x aged")
    listed = call(session, "GET", "?path=aged").json()["entries"]
    assert [entry["path"] for entry in listed] == ["/workspace/aged/x"]
    assert get(session, "aged/x").content == b"old\n"
    moved = call(session, "POST", "/move", json={"source": "aged/x", "destination": f"moved{moment}"})
    assert moved.status_code == 200, moved.text
    session.output("rm -rf aged moved*")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_file_goes_up_and_comes_down_whole(session: Session, chunked: bool) -> None:
    sent = put(session, "up/large.bin", slowly(BIG) if chunked else BIG)
    assert sent.status_code in (200, 201) and sent.json()["size"] == len(BIG)
    assert session.output("sha256sum < up/large.bin").split()[0] == hashlib.sha256(BIG).hexdigest()
    assert session.output("stat -c '%U %a' up/large.bin up") == "user 644\nuser 755\n"
    got = get(session, "up/large.bin")
    assert got.content == BIG and got.headers["Content-Length"] == str(len(BIG))
    assert got.headers["ETag"] == sent.headers["ETag"] == f'"{sent.json()["etag"]}"'


def test_conditions_and_ranges_are_those_of_http(session: Session) -> None:
    made = put(session, "c.txt", b"0123456789", If_None_Match="*")
    tag = made.headers["ETag"]
    assert (made.status_code, code(put(session, "c.txt", b"x", If_None_Match="*"))) == (201, "already_exists")
    assert code(put(session, "c.txt", b"x", If_Match='"0-0-0-0"')) == "precondition_failed"
    assert get(session, "c.txt", If_None_Match=tag).status_code == 304
    for wanted, body, said in (
        ("bytes=2-4", b"234", "bytes 2-4/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
        ("bytes=-99", b"0123456789", "bytes 0-9/10"),
        ("bytes=8-99", b"89", "bytes 8-9/10"),
    ):
        part = get(session, "c.txt", Range=wanted, If_Range=tag)
        assert (part.status_code, part.content, part.headers["Content-Range"]) == (206, body, said)
    for wanted in ("bytes=0-1,4-5", "bytes=5-2", "lines=1-2", "bytes=x"):
        assert get(session, "c.txt", Range=wanted).content == b"0123456789"
    assert get(session, "c.txt", Range="bytes=0-1", If_Range='"other"').status_code == 200
    missing = get(session, "c.txt", Range="bytes=10-")
    assert (code(missing), missing.headers["Content-Range"]) == ("range_not_satisfiable", "bytes */10")
    head = call(session, "HEAD", "/content?path=c.txt")
    assert (head.status_code, head.headers["Content-Length"], head.content) == (200, "10", b"")
    replaced = put(session, "c.txt", b"new", If_Match=tag)
    assert replaced.status_code == 200 and replaced.headers["ETag"] != tag


def test_everything_else_one_does_with_files(session: Session) -> None:
    assert call(session, "POST", "/mkdir", json={"path": "w/x", "mode": "0700"}).json()["mode"] == "0700"
    assert call(session, "POST", "/mkdir", json={"path": "w/x"}).status_code == 200
    put(session, "w/a.py", b"print('one')\n")
    moved = call(session, "POST", "/move", json={"source": "w/a.py", "destination": "/tmp/a.py"})
    assert moved.json()["path"] == "/tmp/a.py"
    copied = call(session, "POST", "/copy", json={"source": "/tmp/a.py", "destination": "w/x/b.py"})
    assert copied.json()["path"] == "/workspace/w/x/b.py"
    edited = call(session, "POST", "/edit", json={"path": "w/x/b.py", "old": "one", "new": "zwölf"})
    assert edited.json()["replacements"] == 1 and session.output("python3 w/x/b.py") == "zwölf\n"
    twice = call(session, "POST", "/edit", json={"path": "w/x/b.py", "old": "'", "new": '"'})
    assert (code(twice), twice.json()["count"], twice.json()["path"]) == ("text_not_unique", 2, "w/x/b.py")
    session.output("ln -s x w/link; mkfifo w/fifo")
    listed = call(session, "GET", "?path=w&depth=3").json()
    told = [(entry["path"].removeprefix("/workspace/"), entry["type"]) for entry in listed["entries"]]
    assert told == [("w/fifo", "other"), ("w/link", "symlink"), ("w/x", "directory"), ("w/x/b.py", "file")]
    assert call(session, "GET", "?path=w&depth=9&glob=**/*.py").json()["entries"][0]["name"] == "b.py"
    first = call(session, "GET", "?path=w&limit=1").json()
    second = call(session, "GET", f"?path=w&limit=9&cursor={first['next_cursor']}").json()
    assert [entry["name"] for entry in first["entries"] + second["entries"]] == ["fifo", "link", "x"]
    assert call(session, "GET", "/stat?path=w/link").json()["target"] == "x"
    assert call(session, "GET", "/stat?path=w/link&follow=true").json()["type"] == "directory"
    assert code(call(session, "DELETE", "?path=w")) == "directory_not_empty"
    assert call(session, "DELETE", "?path=w&recursive=true").status_code == 204
    assert code(call(session, "GET", "/stat?path=w")) == "not_found"


@pytest.mark.parametrize(
    ("method", "path", "body", "wanted"),
    [
        ("GET", "?path=x&nothing=1", None, "invalid_request"),
        ("GET", "?depth=65", None, "invalid_request"),
        ("GET", "?cursor=%ff", None, "invalid_request"),
        ("GET", "?path=.&path_base64=Lg", None, "invalid_request"),
        ("GET", "/stat", None, "invalid_request"),
        ("GET", "/content?path=none", None, "not_found"),
        ("GET", "/content?path=.", None, "is_directory"),
        ("GET", "?path=/data/none", None, "not_found"),
        ("PUT", "/content?path=/data/x", None, "permission_denied not_found"),
        ("PUT", "/content?path=x&mode=9", None, "invalid_request"),
        ("DELETE", "?path=.&recursive=true", None, "invalid_path"),
        ("POST", "/mkdir", {"path": "x", "other": 1}, "invalid_request"),
        ("POST", "/mkdir", {}, "invalid_request"),
        ("POST", "/move", {"source": "none", "destination": "x"}, "not_found"),
        ("POST", "/edit", {"path": "none", "old": "", "new": ""}, "invalid_request"),
        ("POST", "/urls", {"path": "x", "for": "anything"}, "invalid_request"),
    ],
)
def test_what_cannot_be_is_told_by_its_name(
    session: Session, method: str, path: str, body: Any, wanted: str
) -> None:
    assert code(call(session, method, path, json=body)) in wanted.split()


def test_names_of_any_bytes_travel_in_urls_and_in_json(session: Session) -> None:
    name = b"caf\xe9 \xff\n%2e.bin"
    assert put(session, quote_from_bytes(name, safe=""), b"bytes").status_code == 201
    entry = next(one for one in call(session, "GET", "").json()["entries"] if one["name"].startswith("caf"))
    assert entry["path"] == "/workspace/caf\ufffd \ufffd\n%2e.bin"
    again = call(session, "GET", "/content", params={"path_base64": entry["path_base64"]})
    assert again.content == b"bytes" and "\n" not in again.headers["Content-Disposition"]
    moved = {"source_base64": entry["path_base64"], "destination": "plain"}
    assert call(session, "POST", "/move", json=moved).json()["name"] == "plain"


def test_a_url_is_good_for_one_transfer_of_one_file_without_a_key(session: Session) -> None:
    base = session.stack.url

    def made(**wish: Any) -> str:
        answer = call(session, "POST", "/urls", json={"path": "u v.txt", **wish})
        assert answer.status_code == 201, answer.text
        return base + str(answer.json()["url"])

    up = made(**{"for": "upload", "mode": "0600"})
    assert code(requests.put(up.replace("mode=0600", "mode=0777"), data=b"x", timeout=10)) == "unauthorized"
    assert code(requests.get(up, timeout=10)) == "unauthorized"
    assert requests.put(up, data=b"by url", timeout=10).json()["mode"] == "0600"
    assert code(requests.put(up, data=b"again", timeout=10)) == "unauthorized"
    down = made(**{"for": "download"})
    assert code(requests.get(down.replace("u%20v", "other"), timeout=10)) == "unauthorized"
    assert code(requests.put(down, data=b"x", timeout=10)) == "unauthorized"
    assert [requests.head(down, timeout=10).status_code for _ in range(2)] == [200, 200]
    assert requests.get(down, timeout=10).content == b"by url"
    assert code(requests.get(down, timeout=10)) == "unauthorized"
    assert code(requests.get(made(**{"for": "download"}) + "0", timeout=10)) == "unauthorized"


def test_a_url_is_good_for_the_one_place_that_it_names(session: Session) -> None:
    """However the place is written; and there is none that names nothing."""
    put(session, "secret.txt", b"not yours")
    put(session, "given.txt", b"yours")

    def encoded(path: str) -> str:
        return base64.urlsafe_b64encode(path.encode()).decode().rstrip("=")

    base = session.stack.url
    for nothing in ({"path": ""}, {"path_base64": ""}):
        assert code(call(session, "POST", "/urls", json={**nothing, "for": "download"})) == "invalid_request"
    wish = {"path": "given.txt", "for": "download"}
    url = base + call(session, "POST", "/urls", json=wish).json()["url"]
    other = f"path_base64={encoded('secret.txt')}"
    for wrong in (other, f"path=given.txt&{other}", ""):
        assert code(requests.get(url.replace("path=given.txt", wrong), timeout=10)) == "unauthorized"
    same = url.replace("path=given.txt", f"path_base64={encoded('given.txt')}")
    assert requests.get(same, timeout=10).content == b"yours"


def test_a_url_is_refused_once_its_time_is_over(session: Session) -> None:
    """Unused, for both purposes. Until then it is good, or the refusal would prove nothing."""
    put(session, "short.txt", b"as it was")

    def made(purpose: str) -> str:
        wish = {"path": "short.txt", "for": purpose, "expires_in": 2}
        return session.stack.url + str(call(session, "POST", "/urls", json=wish).json()["url"])

    assert requests.get(made("download"), timeout=10).content == b"as it was"
    assert requests.put(made("upload"), data=b"in time", timeout=10).status_code == 200
    down, up = made("download"), made("upload")
    time.sleep(2.1)
    assert code(requests.get(down, timeout=10)) == "unauthorized"
    assert requests.head(down, timeout=10).status_code == 401
    assert code(requests.put(up, data=b"too late", timeout=10)) == "unauthorized"
    assert call(session, "GET", "/content?path=short.txt").content == b"in time"


def test_urls_and_transfers_die_with_their_key_and_their_session(stack: Stack, opened: Open) -> None:
    session = opened()
    key = stack.new_key("default")
    session.output("truncate -s 1000M big")
    body = {"path": "big", "for": "download"}
    path = f"/v1/sessions/{session.id}/files"
    url = stack.url + stack.call("POST", f"{path}/urls", key=key, json=body).json()["url"]
    down = stack.call("GET", f"{path}/content?path=big", key=key, stream=True)
    mine = stack.call("GET", f"{path}/content?path=big", stream=True)
    stalled = _stalling_upload(stack, path, key)
    stack.ctl("key", "revoke", key.removeprefix("e2b_")[:16])
    began = time.monotonic()
    assert code(requests.get(url, timeout=10)) == "unauthorized"
    assert _is_cut_off(down)
    with stalled:
        assert stalled.recv(4096).startswith(b"HTTP/1.1 401 ")
    assert time.monotonic() - began < 5
    assert session.output("ls -A") == "big\n"
    session.close()
    assert _is_cut_off(mine)
    assert code(requests.get(url, timeout=10)) == "unauthorized"


def _stalling_upload(stack: Stack, path: str, key: str) -> socket.socket:
    """One that has begun, and sends no more."""
    connection = socket.create_connection(("127.0.0.1", stack.port), timeout=10)
    head = f"PUT {path}/content?path=slow HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\n"
    connection.sendall(f"{head}Content-Length: 100\r\n\r\nbegun".encode())
    return connection


def _is_cut_off(answer: requests.Response) -> bool:
    try:
        for _ in answer.iter_content(1 << 20):
            pass
    except (requests.exceptions.ChunkedEncodingError, requests.ConnectionError):
        return True
    finally:
        answer.close()
    return False


def test_another_tenants_files_are_not_there(stack: Stack, session: Session) -> None:
    other = stack.new_key("elsewhere")
    for method, path, body in (
        ("GET", "", None),
        ("GET", "/stat?path=.", None),
        ("GET", "/content?path=x", None),
        ("PUT", "/content?path=x", None),
        ("DELETE", "?path=x", None),
        ("POST", "/mkdir", {"path": "x"}),
        ("POST", "/urls", {"path": "x", "for": "upload"}),
    ):
        answer = stack.call(method, f"/v1/sessions/{session.id}/files{path}", key=other, json=body)
        assert code(answer) == "session_not_found"


def test_using_files_keeps_a_session(opened: Open) -> None:
    session = opened(timeout=2)
    for _ in range(4):
        time.sleep(0.9)
        assert put(session, "f", b"x").status_code in (200, 201)
