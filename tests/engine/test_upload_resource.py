"""Files sent ahead are in the sessions that ask for them, and survive whatever the server does meanwhile."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import Any

import pytest
from plain import Open, Session
from stack import Stack, running


def send(stack: Stack, *files: tuple[str, bytes], **headers: str) -> list[dict[str, Any]]:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = stack.call("POST", "/upload", files=[("file", file) for file in files], headers=given)
    assert answer.status_code == 201, answer.text
    told: list[dict[str, Any]] = answer.json()["files"]
    return told


def ids(files: list[dict[str, Any]]) -> list[str]:
    return [file["file_id"] for file in files]


def test_files_are_in_the_new_session_before_it_is_answered(stack: Stack, opened: Open) -> None:
    large = os.urandom(3 << 20)
    files = send(stack, ("a.txt", b"one"), ("a.txt", b"two"), ("../ü ☃", large), ("empty", b""))
    session = opened(files=ids(files))
    assert [(file["path"], file["size"]) for file in session.told["files"]] == [
        ("a.txt", 3),
        ("a (2).txt", 3),
        ("ü ☃", len(large)),
        ("empty", 0),
    ]
    shown = session.output("cat a.txt 'a (2).txt'; sha256sum < 'ü ☃'; stat -c '%U %a %s' *")
    assert shown.startswith(f"onetwo{hashlib.sha256(large).hexdigest()}")
    assert shown.count("user 644") == 4


def test_an_existing_session_gets_them_too(stack: Stack, opened: Open) -> None:
    session = opened(user_id="sent-to")
    session.output("echo old > report; echo mine > mine")
    again = stack.call(
        "POST", "/v1/sessions", json={"user_id": "sent-to", "files": ids(send(stack, ("report", b"new")))}
    )
    assert (again.status_code, again.json()["status"]) == (200, "existing")
    assert session.output("cat report mine") == "newmine\n"


def test_a_create_that_is_repeated_does_not_undo_what_was_done_to_them(stack: Stack) -> None:
    wish = {"files": ids(send(stack, ("a.txt", b"sent"), ("b.txt", b"sent")))}
    key = {"Idempotency-Key": "sent-once"}
    told = stack.call("POST", "/v1/sessions", json=wish, headers=key).json()
    session = Session(stack, told["session_id"], told)
    session.output("echo edited > a.txt; rm b.txt")
    again = stack.call("POST", "/v1/sessions", json=wish, headers=key)
    assert (again.status_code, again.json()["files"]) == (201, told["files"])
    assert session.output("cat a.txt") == "edited\n"
    session.close()


@pytest.mark.parametrize("wrong", [["f" * 32], ["../store"], "x", [1], ["0" * 32] * 101])
def test_a_file_that_is_not_there_is_told_before_anything_is_opened(stack: Stack, wrong: Any) -> None:
    before = stack.call("GET", "/v1/sessions").json()
    answer = stack.call("POST", "/v1/sessions", json={"files": wrong})
    assert answer.status_code == 400
    assert answer.json()["field"].startswith("files")
    assert stack.call("GET", "/v1/sessions").json() == before


def test_another_tenants_file_is_not_there(stack: Stack) -> None:
    mine = ids(send(stack, ("secret", b"mine")))
    answer = stack.call("POST", "/v1/sessions", key=stack.new_key("stranger"), json={"files": mine})
    assert (answer.status_code, answer.json()["field"]) == (400, "files")


def test_a_session_that_cannot_get_its_files_is_not_left_behind(stack: Stack) -> None:
    before = stack.call("GET", "/v1/sessions").json()
    sent = ids(send(stack, ("here", b"x"), ("gone", b"x")))
    (stack.dir / "state" / "uploads" / sent[1]).unlink()
    answer = stack.call("POST", "/v1/sessions", json={"files": sent})
    assert (answer.status_code, answer.json()["field"]) == (400, "files")
    assert stack.call("GET", "/v1/sessions").json() == before


def test_a_session_that_was_there_before_stays_when_a_file_cannot_be_placed(
    stack: Stack, opened: Open
) -> None:
    session = opened(user_id="blocked")
    session.output("mkdir taken")
    body = {"user_id": "blocked", "files": ids(send(stack, ("taken", b"x")))}
    assert stack.call("POST", "/v1/sessions", json=body).status_code == 409
    assert session.output("echo alive") == "alive\n"


@pytest.fixture(scope="module")
def small() -> Iterator[Stack]:
    with running(SANDBOX_UPLOADS="8m", SANDBOX_UPLOAD_LIMIT="4m") as server:
        yield server


def test_uploads_survive_a_restart_and_what_a_crash_left_does_not(small: Stack) -> None:
    place = small.dir / "state" / "uploads"
    kept = send(small, ("a", b"x" * (3 << 20)), Idempotency_Key="k")
    refused = small.call("POST", "/upload", files=[("file", ("b", b"x" * (6 << 20)))])
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
    refused = small.call(
        "POST", "/upload", files=[("file", (f"{n}", b"x" * (2 << 20))) for n in range(2)] * 2
    )
    assert refused.json()["code"] in ("too_large", "too_many_uploads")
    for name in ("web", "keeper"):
        small.kill(name)
    (place / ("e" * 32)).write_bytes(b"left by a crash")
    small.start()
    assert send(small, ("a", b"x" * (3 << 20)), Idempotency_Key="k") == kept
    assert os.listdir(place) == ids(kept)
    other = small.call("POST", "/upload", files=[("file", ("a", b"y"))], headers={"Idempotency-Key": "k"})
    assert other.json()["code"] == "idempotency_conflict"
    session = Session(
        small, small.call("POST", "/create_session", json={"files": ids(kept)}).json()["session_id"], {}
    )
    assert session.output("stat -c %s a") == f"{3 << 20}\n"
