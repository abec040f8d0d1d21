"""Executions as they happen: events with positions, from which every byte can be had again."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import requests
from expect import ended, problem, refused
from plain import Open, Session, open_in
from stack import Stack, running

NDJSON = {"Accept": "application/x-ndjson"}
SSE = {"Accept": "text/event-stream"}
LOG_LIMIT = 256 << 10
STREAMS_MAX = 4
SILENCE_SECONDS = 45  # a reader that does not read is given up after 30

BINARY = """
import os, random
r = random.Random(7)
for _ in range(400):
    os.write(r.choice((1, 2)), r.randbytes(r.randrange(1, 600)))
"""


def path_of(session: Session, execution: str = "", route: str = "") -> str:
    parts = [f"/v1/sessions/{session.id}/executions", execution, route]
    return "/".join(part for part in parts if part)


def background(session: Session, command: Any, **fields: Any) -> str:
    body = {"command": command, "background": True, **fields}
    answer = session.stack.call("POST", path_of(session), json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["execution_id"])


def get(session: Session, execution: str, wait: float = 0) -> dict[str, Any]:
    return dict(session.stack.call("GET", path_of(session, execution), params={"wait": wait}).json())


def finished(session: Session, command: Any, **fields: Any) -> str:
    execution = background(session, command, **fields)
    assert get(session, execution, wait=30)["status"] == "ended"
    return execution


def delete(session: Session, execution: str) -> None:
    assert session.stack.call("DELETE", path_of(session, execution)).status_code == 204


def until(condition: Callable[[], Any], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def bytes_of(event: dict[str, Any]) -> bytes:
    return base64.b64decode(event["base64"]) if "base64" in event else event["text"].encode()


def parsed(lines: Iterator[bytes], kind: str) -> Iterator[dict[str, Any]]:
    """The events of a stream; for SSE, what stands around the JSON must say the same as it does."""
    if kind == "application/x-ndjson":
        yield from (json.loads(line) for line in lines)
        return
    message: dict[str, str] = {}
    for raw in lines:
        name, _, value = raw.decode().partition(": ")
        if name:
            assert name not in message
            message[name] = value
            continue
        event = json.loads(message["data"])
        assert list(message) == ["id", "event", "data"]
        assert (message["id"], message["event"]) == (str(event["seq"]), event["event"])
        yield event
        message = {}
    assert message == {}, "the stream ended in the middle of an event"


class Follower:
    """One who follows, event by event."""

    def __init__(self, answer: requests.Response) -> None:
        self.answer = answer
        self.seen: list[dict[str, Any]] = []
        kind = answer.headers["Content-Type"].partition(";")[0]
        self._events = parsed(answer.iter_lines(), kind)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        self.seen.append(next(self._events))
        return self.seen[-1]

    def until(self, kind: str) -> dict[str, Any]:
        return next(event for event in self if event["event"] == kind)


@contextlib.contextmanager
def following(
    session: Session, execution: str, headers: dict[str, str] = NDJSON, timeout: float = 30, **query: Any
) -> Iterator[Follower]:
    path = path_of(session, execution, "events")
    answer = session.stack.call("GET", path, headers=headers, params=query, stream=True, timeout=timeout)
    with answer:
        assert answer.status_code == 200, answer.text
        follower = Follower(answer)  # held here: to forget it is to hang up
        yield follower


def events(
    session: Session, execution: str, headers: dict[str, str] = NDJSON, **query: Any
) -> list[dict[str, Any]]:
    with following(session, execution, headers, **query) as follower:
        return list(follower)


def printed(found: list[dict[str, Any]], after: int = 0) -> list[tuple[str, int]]:
    """Each byte with its stream. Checks that positions count them exactly."""
    bytes_ = []
    at = after
    for event in found:
        if event["event"] in ("stdout", "stderr"):
            data = bytes_of(event)
            assert data and event["seq"] == at + len(data), event
            bytes_ += [(event["event"], byte) for byte in data]
            at += len(data)
        else:
            assert event["seq"] == (at + 1 if event["event"] == "end" else at), event
    return bytes_


def kinds(found: list[dict[str, Any]]) -> list[str]:
    return [event["event"] for event in found]


@dataclass
class Small:
    """A server that lets a tenant have a few streams. One of its readers never reads."""

    stack: Stack
    session: Session
    flood: str
    began: float


@contextlib.contextmanager
def raw_reader(session: Session, execution: str) -> Iterator[None]:
    """One who asks for events and reads only their beginning."""
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.settimeout(10)
        reader.connect(("127.0.0.1", session.stack.port))
        head = f"GET {path_of(session, execution, 'events')} HTTP/1.1\r\nHost: localhost\r\n"
        reader.sendall(f"{head}Authorization: Bearer {session.stack.key}\r\n\r\n".encode())
        assert b" 200 " in reader.recv(15)
        yield


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[Small]:
    """Started before the first test: the reader who never reads is given up while others run."""
    settings = {"SANDBOX_STREAMS_MAX": str(STREAMS_MAX), "SANDBOX_LOG_LIMIT": str(LOG_LIMIT)}
    with running(**settings) as stack:
        session = open_in(stack)
        flood = background(session, "while :; do printf %200000d 0; sleep 0.1; done", timeout=300)
        with raw_reader(session, flood):
            yield Small(stack, session, flood, time.monotonic())


@pytest.fixture(scope="module", autouse=True)
def patient(session: Session) -> Iterator[Follower]:
    """One who follows a quiet command while other tests run."""
    with following(session, background(session, "echo x; sleep 100"), timeout=60) as follower:
        yield follower


# What is told.


@pytest.mark.parametrize(
    ("headers", "kind"), [(SSE, SSE["Accept"]), (NDJSON, NDJSON["Accept"]), ({}, SSE["Accept"])]
)
def test_events_come_in_the_form_that_was_asked_for(
    session: Session, headers: dict[str, str], kind: str
) -> None:
    execution = finished(session, "echo out; sleep 0.05; echo err >&2; exit 3")
    with following(session, execution, headers or {"Accept": "*/*"}) as follower:
        found = list(follower)
        assert follower.answer.headers["Content-Type"].partition(";")[0] == kind
    start, out, err, end = found
    assert {**start, "started_at": ""} == {
        "event": "start",
        "seq": 0,
        "execution_id": execution,
        "session_id": session.id,
        "started_at": "",
        "pty": False,
    }
    assert out == {"event": "stdout", "seq": 4, "text": "out\n"}
    assert err == {"event": "stderr", "seq": 8, "text": "err\n"}
    assert (end["event"], end["seq"]) == ("end", 9)


def test_the_end_has_the_result_without_what_was_printed(session: Session) -> None:
    execution = finished(session, "echo out; exit 3")
    told = get(session, execution)["result"]
    result = events(session, execution)[-1]["result"]
    assert result == {name: told[name] for name in told if name not in ("stdout", "stderr", "output")}
    assert (result["exit_code"], result["stdout_bytes"], result["status"]) == (3, 4, "ended")


def test_a_stream_is_its_own_answer_to_a_start(session: Session) -> None:
    for path in (path_of(session), f"/v1/sessions/{session.id}/execute"):
        answer = session.stack.call("POST", path, json={"command": "echo hi", "stream": True}, headers=NDJSON)
        found = [json.loads(line) for line in answer.text.splitlines()]
        assert (answer.status_code, kinds(found)) == (200, ["start", "stdout", "end"])
        assert found[0]["execution_id"] == found[2]["result"]["execution_id"]


def test_output_comes_when_it_is_printed_and_not_at_the_end(session: Session) -> None:
    execution = background(session, "echo first; read -r x; echo $x", stdin="pipe")
    with following(session, execution, SSE) as follower:
        assert follower.until("stdout")["text"] == "first\n"
        body = {"data": "second\n"}
        session.stack.call("POST", path_of(session, execution, "input"), json=body)
        assert follower.until("stdout")["text"] == "second\n"
        assert follower.until("end")["result"]["exit_code"] == 0


def test_what_was_never_run_ends_in_a_problem(session: Session) -> None:
    blocking = background(session, "sleep 30", shell="held")
    found = events(session, background(session, "true", shell="held", timeout=0.2))
    assert kinds(found) == ["start", "problem"]
    assert (found[1]["problem"]["code"], found[1]["problem"]["status"]) == ("shell_busy", 429)
    delete(session, blocking)


def test_a_killed_command_ends_as_cancelled(session: Session) -> None:
    execution = background(session, "echo begun; sleep 60")
    with following(session, execution) as follower:
        follower.until("stdout")
        delete(session, execution)
        result = follower.until("end")["result"]
    assert (result["cancelled"], result["signal"]) == (True, "SIGKILL")


def test_a_pty_speaks_as_stdout(session: Session) -> None:
    found = events(session, finished(session, "echo a; echo b >&2", pty={}))
    assert found[0]["pty"] is True
    assert set(kinds(found[1:-1])) == {"stdout"}
    assert bytes(byte for _, byte in printed(found)) == b"a\r\nb\r\n"


# Positions.


def test_every_byte_can_be_had_again_from_every_position(session: Session) -> None:
    execution = finished(session, ["python3", "-c", BINARY])
    whole = printed(events(session, execution))
    total = get(session, execution)["seq"]
    assert len(whole) == total > 50_000
    for stream in ("stdout", "stderr"):
        expected = bytes(byte for name, byte in whole if name == stream)
        log = session.stack.call("GET", path_of(session, execution, "log"), params={"stream": stream})
        assert log.content == expected
    for at in [0, 1, total - 1, total, *random.Random(3).sample(range(total), 25)]:
        assert printed(events(session, execution, after=at), at) == whole[at:], at


def test_positions_asked_for_leave_the_start_out(session: Session) -> None:
    execution = finished(session, "printf abc")
    assert kinds(events(session, execution)) == ["start", "stdout", "end"]
    assert kinds(events(session, execution, after=0)) == ["stdout", "end"]
    assert events(session, execution, after=1)[0] == {"event": "stdout", "seq": 3, "text": "bc"}
    assert kinds(events(session, execution, after=3)) == ["end"]


def test_the_last_event_id_wins(session: Session) -> None:
    execution = finished(session, "printf abcdef")
    for last, text in (("4", "ef"), ("1", "bcdef"), ("0", "abcdef")):
        found = events(session, execution, {**SSE, "Last-Event-ID": last}, after=3)
        assert found[0] == {"event": "stdout", "seq": 6, "text": text}, last


def test_a_last_event_id_of_nobodys_counts_as_none(session: Session) -> None:
    execution = finished(session, "printf abcdef")
    for nonsense in ("", "x", "-1", "1.5", "9" * 30):
        assert events(session, execution, {**SSE, "Last-Event-ID": nonsense}, after=3)[0]["text"] == "def"


def test_asking_behind_the_end_is_answered_with_nothing(session: Session) -> None:
    execution = finished(session, "printf abc")
    end = events(session, execution)[-1]["seq"]
    for given in ({"params": {"after": end}}, {"headers": {"Last-Event-ID": str(end)}}):
        answer = session.stack.call("GET", path_of(session, execution, "events"), **given)
        assert (answer.status_code, answer.content) == (204, b"")


def test_a_position_that_was_not_reached_yet_is_refused(session: Session) -> None:
    execution = background(session, "printf abc; sleep 30")
    until(lambda: get(session, execution)["seq"] == 3)
    refused(session.stack.call("GET", path_of(session, execution, "events"), params={"after": 4}), "after")
    delete(session, execution)


@pytest.mark.parametrize("after", ["-1", "x", "1.5", str(1 << 63)])
def test_a_position_that_is_none_is_refused(session: Session, after: str) -> None:
    refused(session.stack.call("GET", path_of(session, "any", "events"), params={"after": after}), "after")


def test_a_character_cut_in_two_is_whole_again_when_the_bytes_are_joined(session: Session) -> None:
    execution = background(session, r"printf 'a\xe2\x98'; read -r x; printf '\x83b'", stdin="pipe")
    with following(session, execution) as follower:
        first = follower.until("stdout")
        session.stack.call("POST", path_of(session, execution, "input"), json={"data": "\n"})
        second = follower.until("stdout")
        follower.until("end")
    assert (base64.b64decode(first["base64"]), first["seq"]) == (b"a\xe2\x98", 3)
    assert (bytes_of(first) + bytes_of(second)).decode() == "a☃b"
    assert events(session, execution)[1] == {"event": "stdout", "seq": 5, "text": "a☃b"}
    assert bytes_of(events(session, execution, after=2)[0]) == b"\x98\x83b"


def test_text_that_is_no_utf_8_comes_as_base64_and_what_is_does_not(session: Session) -> None:
    found = events(session, finished(session, r"printf '\xff\0'; sleep 0.1; printf 'é☃\r\n\x1b[1m' >&2"))
    assert (bytes_of(found[1]), found[1]["text"]) == (b"\xff\x00", "\ufffd\x00")
    assert found[2]["text"] == "é☃\r\n\x1b[1m" and "base64" not in found[2]


def test_output_that_looks_like_events_breaks_no_frame(session: Session) -> None:
    fake = 'x\n\nid: 99\nevent: end\ndata: {"event": "end", "seq": 99}\n\n\u2028\x85\r\n'
    execution = finished(session, ["printf", "%s", fake])
    for headers in (SSE, NDJSON):
        found = events(session, execution, headers)
        assert kinds(found) == ["start", "stdout", "end"]
        assert found[1]["text"] == fake


# Readers.


def test_several_readers_and_one_who_comes_late_see_the_same(session: Session) -> None:
    execution = background(session, "for i in $(seq 300); do echo $i; echo e$i >&2; sleep 0.002; done")
    found: list[list[tuple[str, int]]] = []
    readers = [
        threading.Thread(
            target=lambda headers: found.append(printed(events(session, execution, headers))), args=(h,)
        )
        for h in (SSE, NDJSON, SSE, NDJSON)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(30)
    late = printed(events(session, execution))
    assert found == [late] * 4
    assert bytes(byte for stream, byte in late if stream == "stdout").split() == [
        str(i).encode() for i in range(1, 301)
    ]


def test_a_command_goes_on_when_its_reader_hangs_up(session: Session) -> None:
    body = {"command": "echo begun; sleep 0.5; echo done", "stream": True}
    answer = session.stack.call("POST", path_of(session), json=body, headers=NDJSON, stream=True)
    with answer:
        execution = json.loads(next(answer.iter_lines()))["execution_id"]
    told = get(session, execution, wait=10)
    assert (told["result"]["stdout"], told["result"]["cancelled"]) == ("begun\ndone\n", False)


def test_a_command_is_killed_with_its_reader_if_that_was_asked_for(session: Session) -> None:
    for command in ("echo begun; sleep 60", "echo begun; while :; do echo x; done"):
        body = {"command": command, "stream": True, "kill_on_disconnect": True, "shell": None}
        answer = session.stack.call("POST", path_of(session), json=body, headers=NDJSON, stream=True)
        with answer:
            follower = Follower(answer)
            execution = follower.until("start")["execution_id"]
            assert get(session, execution)["status"] == "running"
        told = get(session, execution, wait=8)
        assert (told["status"], (told["result"] or {}).get("cancelled")) == ("ended", True), command


def test_a_command_whose_reader_stays_to_the_end_is_not_killed(session: Session) -> None:
    body = {"command": "sleep 0.2; echo done", "stream": True, "kill_on_disconnect": True}
    found = session.stack.call("POST", path_of(session), json=body, headers=NDJSON).text.splitlines()
    assert json.loads(found[-1])["result"]["cancelled"] is False


def test_a_session_closed_in_the_middle_ends_its_streams_with_the_reason(opened: Open) -> None:
    session = opened()
    execution = background(session, "echo begun; sleep 60")
    with following(session, execution) as follower:
        follower.until("stdout")
        session.close()
        last = follower.until("problem")
        assert (last["seq"], last["problem"]["code"], last["problem"]["cause"]) == (
            6,
            "session_ended",
            "closed",
        )
        assert list(follower) == []
    ended(session.stack.call("GET", path_of(session, execution, "events")), "closed")


def test_a_revoked_key_ends_its_streams(session: Session) -> None:
    key = session.stack.new_key("default")
    execution = background(session, "while :; do echo x; sleep 0.2; done")
    path = path_of(session, execution, "events")
    with session.stack.call("GET", path, key=key, headers=NDJSON, stream=True, timeout=20) as answer:
        follower = Follower(answer)
        follower.until("stdout")
        session.stack.ctl("key", "revoke", key)
        assert follower.until("problem")["problem"]["code"] == "unauthorized"
        assert list(follower) == []
    assert get(session, execution)["status"] == "running"
    problem(session.stack.call("GET", path, key=key), 401, "unauthorized")
    delete(session, execution)


# The log.


def test_a_log_is_downloaded_whole_or_by_stream(session: Session) -> None:
    execution = finished(session, r"printf 'o\377'; sleep 0.05; printf 'e\0' >&2; sleep 0.05; printf o2")
    for query, content in (
        ({}, b"o\xffe\x00o2"),
        ({"stream": "stdout"}, b"o\xffo2"),
        ({"stream": "stderr"}, b"e\x00"),
    ):
        answer = session.stack.call("GET", path_of(session, execution, "log"), params=query)
        assert (answer.status_code, answer.content) == (200, content)
        assert answer.headers["Content-Type"] == "application/octet-stream"
        assert answer.headers["Content-Disposition"].startswith("attachment")
        assert answer.headers["X-Log-Bytes"] == str(len(content)) and "X-Log-Missing" not in answer.headers
    refused(
        session.stack.call("GET", path_of(session, execution, "log"), params={"stream": "both"}), "stream"
    )


def test_the_log_of_what_still_runs_is_what_it_has_printed_so_far(session: Session) -> None:
    execution = background(session, "echo begun; sleep 60")
    until(lambda: get(session, execution)["seq"] == 6)
    assert session.stack.call("GET", path_of(session, execution, "log")).content == b"begun\n"
    delete(session, execution)


def test_a_log_keeps_more_than_a_result_does(session: Session) -> None:
    execution = finished(session, "seq 500000")
    told = get(session, execution)
    assert (told["result"]["truncated"], told["missing"]) == (True, [])
    log = session.stack.call("GET", path_of(session, execution, "log")).text
    assert log.split() == [str(i) for i in range(1, 500001)]
    assert "".join(e["text"] for e in events(session, execution) if e["event"] == "stdout") == log


def test_a_quiet_command_is_kept_alive_with_the_last_position(session: Session, patient: Follower) -> None:
    assert patient.until("keepalive") == {"event": "keepalive", "seq": 2}
    delete(session, patient.seen[0]["execution_id"])
    assert kinds(list(patient))[-1] == "end"


# Tickets.


def ticket_for(session: Session, execution: str, key: str | None = None) -> dict[str, Any]:
    body = {"for": "events", "execution_id": execution}
    answer = session.stack.call("POST", f"/v1/sessions/{session.id}/tickets", key=key, json=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def by_ticket(session: Session, path: str, ticket: str, method: str = "GET") -> requests.Response:
    """As a browser asks: nothing but a URL."""
    url = session.stack.url + path
    return requests.request(method, url, params={"ticket": ticket}, timeout=20)


def test_a_ticket_opens_the_events_without_a_key_as_often_as_needed(session: Session) -> None:
    execution = finished(session, "echo seen")
    given = ticket_for(session, execution)
    assert given["url"] == f"{path_of(session, execution, 'events')}?ticket={given['ticket']}"
    assert given["expires_at"] > time.strftime("%Y-%m-%dT%H:%M", time.gmtime(time.time() + 3500))
    for _ in range(3):
        answer = requests.get(session.stack.url + given["url"], timeout=20)
        found = list(parsed(iter(answer.content.splitlines()), SSE["Accept"]))
        assert kinds(found) == ["start", "stdout", "end"]
    resumed = requests.get(session.stack.url + given["url"], headers={"Last-Event-ID": "6"}, timeout=20)
    assert resumed.status_code == 204


def test_a_ticket_opens_nothing_else(session: Session, opened: Open) -> None:
    execution, other = finished(session, "echo seen"), opened()
    ticket = ticket_for(session, execution)["ticket"]
    twin = finished(other, "echo seen", execution_id=execution)
    for method, path in (
        ("GET", path_of(session)),
        ("GET", path_of(session, execution)),
        ("DELETE", path_of(session, execution)),
        ("GET", path_of(session, execution, "log")),
        ("POST", path_of(session, execution, "input")),
        ("POST", path_of(session, execution, "signal")),
        ("POST", path_of(session)),
        ("GET", path_of(session, finished(session, "true"), "events")),
        ("GET", path_of(other, twin, "events")),
        ("GET", f"/v1/sessions/{session.id}"),
        ("GET", f"/v1/sessions/{session.id}/terminal"),
        ("POST", f"/v1/sessions/{session.id}/tickets"),
    ):
        problem(by_ticket(session, path, ticket, method), 401, "unauthorized")


def test_forged_tickets_are_refused(session: Session) -> None:
    execution = finished(session, "echo seen")
    body, _, signature = ticket_for(session, execution)["ticket"].partition(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    later = base64.urlsafe_b64encode(json.dumps({**claims, "until": 1e12}).encode()).decode().rstrip("=")
    terminal = {"for": "terminal"}
    other = session.stack.call("POST", f"/v1/sessions/{session.id}/tickets", json=terminal).json()["ticket"]
    for forged in (
        "",
        ".",
        body,
        f"{body}.",
        f"{later}.{signature}",
        f"{body}.{signature[:-1]}0é",
        other,
        "é.é",
    ):
        path = path_of(session, execution, "events")
        problem(by_ticket(session, path, forged), 401, "unauthorized")


def test_a_ticket_dies_with_its_key_also_in_the_middle(session: Session) -> None:
    key = session.stack.new_key("default")
    execution = background(session, "while :; do echo x; sleep 0.2; done")
    url = session.stack.url + ticket_for(session, execution, key)["url"]
    with requests.get(url, headers=NDJSON, stream=True, timeout=20) as answer:
        follower = Follower(answer)
        follower.until("stdout")
        session.stack.ctl("key", "revoke", key)
        assert follower.until("problem")["problem"]["code"] == "unauthorized"
    problem(requests.get(url, timeout=20), 401, "unauthorized")
    delete(session, execution)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "for"),
        ({"for": "everything"}, "for"),
        ({"for": "events"}, "body"),
        ({"for": "terminal", "execution_id": "x"}, "body"),
        ({"for": "events", "execution_id": ""}, "execution_id"),
    ],
)
def test_bad_wishes_for_tickets_are_refused(session: Session, body: dict[str, Any], field: str) -> None:
    refused(session.stack.call("POST", f"/v1/sessions/{session.id}/tickets", json=body), field)


def test_there_are_no_tickets_for_what_is_not_there(session: Session) -> None:
    body = {"for": "events", "execution_id": "nope"}
    path = f"/v1/sessions/{session.id}/tickets"
    problem(session.stack.call("POST", path, json=body), 404, "execution_not_found")


# On a server with small limits, whose web is killed.


def can_follow(session: Session, execution: str) -> bool:
    path = path_of(session, execution, "events")
    with session.stack.call("GET", path, headers=NDJSON, stream=True, timeout=20) as answer:
        return answer.status_code == 200


def test_readers_beyond_the_limit_are_refused_and_nothing_is_started_for_them(small: Small) -> None:
    session, quiet = small.session, background(small.session, "sleep 90")
    with contextlib.ExitStack() as readers:
        for _ in range(STREAMS_MAX - 1):  # and the one who never reads
            readers.enter_context(following(session, quiet)).until("start")
        answer = session.stack.call("GET", path_of(session, quiet, "events"), timeout=5)
        body = problem(answer, 429, "too_many_streams")
        assert (body["allowed"], body["scope"], body["retryable"]) == (STREAMS_MAX, "tenant", True)
        known = len(session.stack.call("GET", path_of(session)).json()["executions"])
        wish = {"command": "touch never", "stream": True}
        problem(session.stack.call("POST", path_of(session), json=wish), 429, "too_many_streams")
        assert len(session.stack.call("GET", path_of(session)).json()["executions"]) == known
    delete(session, quiet)


@pytest.mark.parametrize("command", ["sleep 90", "while :; do echo x; sleep 0.1; done", "yes"])
def test_a_reader_who_hangs_up_gives_its_place_back_within_seconds(small: Small, command: str) -> None:
    session, followed = small.session, background(small.session, command)
    until(lambda: can_follow(session, followed), 10)
    with contextlib.ExitStack() as readers:
        for _ in range(STREAMS_MAX - 1):
            readers.enter_context(raw_reader(session, followed))
        assert not can_follow(session, followed)
    until(lambda: can_follow(session, followed), 4)
    assert get(session, followed)["status"] == "running"
    delete(session, followed)


def test_a_refused_start_gives_its_place_back(small: Small) -> None:
    for _ in range(2 * STREAMS_MAX):
        wish = {"command": "true", "stream": True, "cwd": "/nowhere"}
        refused(small.stack.call("POST", path_of(small.session), json=wish), "cwd")


def test_a_head_request_takes_no_place(small: Small) -> None:
    quiet = background(small.session, "sleep 30")
    for _ in range(2 * STREAMS_MAX):
        assert small.stack.call("HEAD", path_of(small.session, quiet, "events")).status_code == 200
    delete(small.session, quiet)


def test_a_log_beyond_its_limit_is_cut_and_every_word_of_it_agrees(small: Small) -> None:
    """The same gap in the events, the download and the facts; around it every byte is where it was."""
    session = small.session
    execution = finished(session, "seq -w 1 200000")
    expected = b"".join(b"%06d\n" % i for i in range(1, 200001))
    told = get(session, execution)
    [[begin, end]] = told["missing"]
    assert told["seq"] == len(expected) and end - begin == len(expected) - LOG_LIMIT
    log = session.stack.call("GET", path_of(session, execution, "log"))
    assert log.content == expected[:begin] + expected[end:]
    assert (log.headers["X-Log-Bytes"], log.headers["X-Log-Missing"]) == (
        str(len(expected)),
        f"{begin}-{end}",
    )
    found = events(session, execution)
    gaps = [event for event in found if event["event"] == "gap"]
    assert gaps == [{"event": "gap", "seq": end, "from": begin, "to": end}]
    assert b"".join(bytes_of(e) for e in found if e["event"] == "stdout") == log.content
    assert found[-1]["seq"] == len(expected) + 1


def test_a_position_inside_a_gap_is_told_what_is_missing_from_there(small: Small) -> None:
    session = small.session
    execution = finished(session, "seq -w 1 200000")
    [[begin, end]] = get(session, execution)["missing"]
    for at in (begin, begin + 1, (begin + end) // 2, end - 1):
        first, second = events(session, execution, after=at)[:2]
        assert first == {"event": "gap", "seq": end, "from": at, "to": end}
        assert (second["event"], second["seq"] > end) == ("stdout", True)
    assert kinds(events(session, execution, after=end))[0] == "stdout"


def test_a_flood_of_both_streams_is_cut_by_the_same_rule(small: Small) -> None:
    code = "import os\nfor i in range(60000): os.write(1 + i % 2, b'%07d\\n' % i)"
    execution = finished(small.session, ["python3", "-c", code])
    [[begin, end]] = get(small.session, execution)["missing"]
    log = small.stack.call("GET", path_of(small.session, execution, "log"))
    parts = {
        stream: small.stack.call("GET", path_of(small.session, execution, "log"), params={"stream": stream})
        for stream in ("stdout", "stderr")
    }
    assert log.headers["X-Log-Missing"] == parts["stdout"].headers["X-Log-Missing"] == f"{begin}-{end}"
    assert len(log.content) == sum(len(part.content) for part in parts.values()) == 480000 - (end - begin)
    for number, part in enumerate(parts.values()):
        whole = [int(line) for line in part.content.split() if len(line) == 7]
        assert all(line % 2 == number for line in whole)


def test_the_logs_of_many_commands_are_forgotten_oldest_first_and_say_so(small: Small) -> None:
    ids = [finished(small.session, "seq -w 1 60000") for _ in range(6)]
    told = get(small.session, ids[0])
    assert told["missing"] == [[0, told["seq"]]] and told["seq"] == 360000
    log = small.stack.call("GET", path_of(small.session, ids[0], "log"))
    assert (log.content, log.headers["X-Log-Missing"]) == (b"", "0-360000")
    found = events(small.session, ids[0])
    assert kinds(found) == ["start", "gap", "end"]
    assert found[-1] == {"event": "end", "seq": 360001, "result": None}
    assert get(small.session, ids[-1])["missing"] != told["missing"]


def test_logs_are_read_whatever_the_limit_of_results_is() -> None:
    """Results of few bytes do not make the pieces of a log too large to be taken."""
    with running(SANDBOX_OUTPUT_LIMIT="4k") as stack:
        session = open_in(stack)
        execution = finished(session, "seq -w 1 100000")
        log = stack.call("GET", path_of(session, execution, "log"))
        found = events(session, execution)
        session.close()
    assert (log.status_code, len(log.content)) == (200, 700000)
    assert (found[-1]["event"], found[-1]["seq"]) == ("end", 700001)


def test_a_reader_who_never_reads_is_given_up_and_its_command_goes_on(small: Small) -> None:
    session = small.session
    quiet = background(session, "sleep 90")

    def has_all_places() -> bool:
        with contextlib.ExitStack() as readers:
            for _ in range(STREAMS_MAX):
                path = path_of(session, quiet, "events")
                answer = readers.enter_context(session.stack.call("GET", path, stream=True, timeout=20))
                if answer.status_code != 200:
                    return False
        return True

    until(has_all_places, max(5, small.began + SILENCE_SECONDS - time.monotonic()))
    assert get(session, small.flood)["status"] == "running"
    delete(session, small.flood)
    delete(session, quiet)


def test_following_goes_on_after_the_web_was_killed_without_a_byte_lost(small: Small) -> None:
    session = small.session
    code = "import time\nfor i in range(2500): print('%06d' % i, flush=True); time.sleep(0.0015)"
    execution = background(session, ["python3", "-c", code])
    url = ticket_for(session, execution)["url"]
    with pytest.raises((requests.exceptions.ChunkedEncodingError, requests.exceptions.ConnectionError)):  # noqa: SIM117
        with following(session, execution, SSE) as first:
            for event in first:
                if event["seq"] > 3000 and "web" in small.stack.processes:
                    small.stack.kill("web")
    small.stack.start_web()
    small.stack.wait_ready()
    last = first.seen[-1]["seq"]
    headers = {**SSE, "Last-Event-ID": str(last)}
    with requests.get(small.stack.url + url, headers=headers, stream=True, timeout=20) as answer:
        second = list(Follower(answer))
    assert second[0]["seq"] > last and second[-1]["event"] == "end"
    whole = printed(first.seen) + printed(second, last)
    assert bytes(byte for _, byte in whole) == b"".join(b"%06d\n" % i for i in range(2500))
    assert second[-1]["result"]["exit_code"] == 0


def test_places_of_streams_are_free_again_after_the_web_was_killed(small: Small) -> None:
    """Whatever the dead workers had counted is gone."""
    session, quiet = small.session, background(small.session, "sleep 60")
    with contextlib.ExitStack() as readers:
        for _ in range(STREAMS_MAX):
            readers.enter_context(following(session, quiet)).until("start")
        small.stack.kill("web")
    small.stack.start_web()
    small.stack.wait_ready()
    with contextlib.ExitStack() as readers:
        for _ in range(STREAMS_MAX):
            readers.enter_context(following(session, quiet)).until("start")
    delete(session, quiet)
