"""Whole trees over HTTP: archives down and up, search, and what happens in a directory."""

from __future__ import annotations

import base64
import io
import json
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from expect import problem, refused
from plain import Open, Session

NDJSON = {"Accept": "application/x-ndjson"}
TYPES = {"tar": "application/x-tar", "tar.gz": "application/gzip", "zip": "application/zip"}


def call(session: Session, method: str, route: str, **options: Any) -> requests.Response:
    return session.stack.call(method, f"/v1/sessions/{session.id}/files/{route}", **options)


def names_in(archive: bytes, format: str) -> set[str]:
    if format == "zip":
        with zipfile.ZipFile(io.BytesIO(archive)) as zipped:
            return {name.rstrip("/") for name in zipped.namelist()}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return set(tar.getnames())


@pytest.mark.parametrize("format", TYPES)
def test_a_tree_is_downloaded_and_uploaded_again(session: Session, format: str) -> None:
    session.execute(
        "rm -rf * ; mkdir -p a/b; head -c 3000000 /dev/urandom >a/b/big; ln -s big a/b/link; mkfifo pipe"
    )
    answer = call(session, "GET", "archive", params={"path": "/workspace", "format": format})
    assert answer.status_code == 200
    told = {name: answer.headers[name] for name in answer.headers if name.startswith("X-Archive")}
    assert told == {"X-Archive-Entries": "4", "X-Archive-Bytes": "3000000", "X-Archive-Skipped": "1"}
    assert answer.headers["Content-Type"] == TYPES[format]
    assert f'attachment; filename="workspace.{format}"' in answer.headers["Content-Disposition"]
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert names_in(answer.content, format) == {"a", "a/b", "a/b/big", "a/b/link"}
    head = call(session, "HEAD", "archive", params={"path": ".", "format": format})
    assert (head.status_code, head.content) == (200, b"")
    kind = {"Content-Type": TYPES[format]}
    back = call(session, "PUT", "archive", params={"path": "back/to"}, data=answer.content, headers=kind)
    counts = {"files": 2, "directories": 2, "bytes": 3000000, "skipped": [], "skipped_count": 0}
    assert back.json() == {"path": "/workspace/back/to", **counts}
    pieces = (answer.content[at : at + 70_000] for at in range(0, len(answer.content), 70_000))
    again = call(session, "PUT", "archive", params={"path": "back/to", "format": format}, data=pieces)
    assert again.json() == {"path": "/workspace/back/to", **counts, "directories": 0}
    assert (
        session.output("cmp a/b/big back/to/a/b/big && stat -c %U back/to/a/b/link; ls -A back/to")
        == "user\na\n"
    )


def test_what_cannot_be_packed_or_unpacked_says_why(session: Session) -> None:
    session.execute("rm -rf *; ln -s /etc out; echo x >file; mkfifo pipe")
    tar = {"format": "tar"}
    for method, query, status, code in (
        ("GET", {"path": "nowhere"}, 404, "not_found"),
        ("GET", {"path": "out"}, 400, "invalid_path"),
        ("GET", {"path": "pipe"}, 409, "not_a_regular_file"),
        ("GET", {"format": "rar"}, 400, "invalid_request"),
        ("GET", {"what": "x"}, 400, "invalid_request"),
        ("PUT", {}, 400, "invalid_request"),
        ("PUT", {"path": "out", **tar}, 400, "invalid_path"),
        ("PUT", {"path": "file", **tar}, 409, "not_a_directory"),
        ("PUT", {"path": "/etc", **tar}, 400, "invalid_path"),
        ("PUT", tar, 400, "invalid_archive"),
        ("PUT", {"format": "zip"}, 400, "invalid_archive"),
    ):
        body = b"nothing" * 1000 if method == "PUT" else None
        problem(call(session, method, "archive", params=query, data=body), status, code)
    assert session.output("ls") == "file\nout\npipe\n"


def test_a_search_finds_lines_and_names_what_is_wrong_with_a_question(session: Session) -> None:
    session.execute(
        "rm -rf *; mkdir -p src .git; printf 'one\\ntwo needle\\nthree\\n' >src/a.py; echo needle >.git/x"
    )
    ask = {"pattern": "NEED.E", "regex": True, "ignore_case": True, "glob": "*.py", "context": 1}
    answer = call(session, "POST", "search", json=ask)
    match = {"path": "/workspace/src/a.py", "line": 2, "column": 5, "text": "two needle"}
    match |= {"before": ["one"], "after": ["three"]}
    assert answer.json() == {"matches": [match], "files_searched": 1, "files_skipped": 0, "truncated": False}
    for body, field in (
        ({"pattern": "(", "regex": True}, "pattern"),
        ({"pattern": ""}, "pattern"),
        ({}, "pattern"),
        ({"pattern": "x", "glob": "x" * 2000}, "glob"),
        ({"pattern": "x", "context": 21}, "context"),
        ({"pattern": "x", "limit": 0}, "limit"),
        ({"pattern": "x", "what": 1}, "what"),
    ):
        refused(call(session, "POST", "search", json=body), field)
    problem(call(session, "POST", "search", json={"pattern": "x", "path": "no"}), 404, "not_found")


class Watch:
    """One who watches, event by event."""

    def __init__(self, session: Session, **query: str) -> None:
        self.answer = call(session, "GET", "watch", params=query, headers=NDJSON, stream=True)
        assert self.answer.status_code == 200, self.answer.text
        self._lines: Iterator[bytes] = self.answer.iter_lines()
        self.start = next(self)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        return dict(json.loads(next(self._lines)))

    def next(self, count: int) -> list[tuple[str, str]]:
        events = [next(event for event in self if event["type"] != "keepalive") for _ in range(count)]
        return [(event["type"], event["path"]) for event in events]


def test_what_happens_in_a_directory_is_told_until_it_goes(session: Session) -> None:
    session.execute("rm -rf *; mkdir -p d/e")
    watch = Watch(session, path="d", recursive="true")
    assert watch.start == {"type": "start", "seq": 0, "path": "/workspace/d"}
    session.execute("echo x >d/e/f; mv d/e/f d/g; touch $'d/\\xff'")
    first = [next(watch) for _ in range(3)]
    assert first[0] == {"type": "created", "seq": 1, "path": "/workspace/d/e/f", "directory": False}
    moved = {"type": "moved", "path": "/workspace/d/g", "old_path": "/workspace/d/e/f", "directory": False}
    assert first[1] == {**moved, "seq": 2}
    assert base64.b64decode(first[2]["path_base64"]) == b"/workspace/d/\xff"
    session.execute("rm -r d")
    events = list(watch)
    assert events[-1] == {"type": "end", "seq": events[-1]["seq"], "path": "/workspace/d", "directory": True}


def test_a_watch_as_server_sent_events_is_what_a_browser_expects(session: Session) -> None:
    session.execute("rm -rf *")
    answer = call(session, "GET", "watch", stream=True)
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    lines = answer.iter_lines()
    assert next(lines) == b"id: 0" and next(lines) == b"event: start"
    session.execute("touch f")
    data = next(line for line in lines if b"created" in line and line.startswith(b"data: "))
    assert json.loads(data[6:])["path"] == "/workspace/f"
    answer.close()


def test_watches_are_few_and_closing_one_makes_room(session: Session) -> None:
    watches = [Watch(session) for _ in range(8)]
    problem(call(session, "GET", "watch"), 429, "too_many_streams")
    for watch in watches:
        watch.answer.close()
    until(lambda: call(session, "GET", "watch", stream=True).status_code == 200)


def until(condition: Callable[[], bool], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_a_revoked_key_and_a_closed_session_end_a_watch(session: Session, opened: Open) -> None:
    key = session.stack.new_key("default")
    path = f"/v1/sessions/{session.id}/files/watch"
    answer = session.stack.call("GET", path, key=key, headers=NDJSON, stream=True, timeout=30)
    lines = answer.iter_lines()
    next(lines)
    session.stack.ctl("key", "revoke", key)
    revoked = time.monotonic()
    assert [json.loads(line) for line in lines][-1]["problem"]["code"] == "unauthorized"
    assert time.monotonic() - revoked < 5, "though nothing has happened there"
    other = opened()
    watch = Watch(other)
    threading.Timer(0.2, other.close).start()
    assert list(watch)[-1]["problem"]["code"] == "session_ended"
