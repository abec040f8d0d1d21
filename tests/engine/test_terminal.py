"""Terminals over a WebSocket: who may open one, what one sees and types there, and what nobody can break."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyte
import pytest
import requests
import websocket
from expect import problem, refused
from plain import Session, open_in
from stack import Stack, running
from websocket import ABNF

from server.config import load
from server.instance import load as load_instance
from server.tickets import Tickets

PATIENCE = 20.0
ELSEWHERE = "https://console.example"
CTRL_C, CTRL_D, CTRL_Z = b"\x03", b"\x04", b"\x1a"
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


class Viewer:
    """One connection to a terminal, and everything that came over it."""

    def __init__(self, session: Session, query: str = "", **options: Any) -> None:
        url = session.stack.url.replace("http", "ws", 1) + f"/v1/sessions/{session.id}/terminal?{query}"
        options.setdefault("header", [f"Authorization: Bearer {session.stack.key}"])
        self.socket = websocket.create_connection(url, timeout=PATIENCE, **options)
        self.seen = b""
        self.said: list[dict[str, Any]] = []
        self.closed: tuple[int, str] | None = None
        try:
            self.ready = self.hears("ready")
        except BaseException:
            self.leave()
            raise

    def types(self, keys: bytes) -> None:
        self.socket.send_binary(keys)

    def says(self, **message: Any) -> None:
        self.socket.send(json.dumps(message))

    def shows(self, pattern: bytes, times: int = 1) -> re.Match[bytes]:
        """Read on until it is seen so many times; whatever was there is gone afterwards."""
        self._receive(lambda: len(re.findall(pattern, self.seen)) >= times, f"{pattern!r}")
        *_, found = re.finditer(pattern, self.seen)
        self.seen = self.seen[found.end() :]
        return found

    def hears(self, kind: str) -> dict[str, Any]:
        self._receive(lambda: any(one["type"] == kind for one in self.said), kind)
        (found,) = (one for one in self.said if one["type"] == kind)
        self.said.remove(found)
        return found

    def ends(self) -> tuple[int, str]:
        """Read to the closing frame: its code and reason."""
        self._receive(lambda: self.closed is not None, "a close")
        assert self.closed is not None
        self.leave()
        return self.closed

    def reads(self, size: int) -> bytes:
        self._receive(lambda: len(self.seen) >= size, f"{size} bytes")
        return self.seen

    def _receive(self, enough: Callable[[], bool], wanted: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not enough():
            left = deadline - time.monotonic()
            assert left > 0, f"waited for {wanted}: {self.seen[-500:]!r} {self.said} {self.closed}"
            assert self.closed is None, f"closed before {wanted}: {self.seen[-500:]!r} {self.closed}"
            self.socket.settimeout(left)
            with contextlib.suppress(websocket.WebSocketTimeoutException):
                self._take(*self.socket.recv_data(control_frame=True))

    def _take(self, kind: int, data: bytes) -> None:
        if kind == ABNF.OPCODE_BINARY:
            self.seen += data
        elif kind == ABNF.OPCODE_TEXT:
            self.said.append(json.loads(data))
        elif kind == ABNF.OPCODE_CLOSE:
            self.closed = struct.unpack("!H", data[:2])[0], data[2:].decode()

    def leave(self) -> None:
        self.socket.shutdown()


class Glass(pyte.Screen):
    """An emulator that does not mind what newer programs ask of newer terminals."""

    def select_graphic_rendition(self, *attributes: int, private: bool = False) -> None:
        if not private:
            super().select_graphic_rendition(*attributes)


class Screen:
    """What a person at a viewer would see."""

    def __init__(self, viewer: Viewer, cols: int = 80, rows: int = 24) -> None:
        self._viewer = viewer
        self._screen = Glass(cols, rows)
        self._stream = pyte.ByteStream(self._screen)

    def shows(self, *texts: str) -> list[str]:
        """The lines, as soon as all these texts are on it."""
        deadline = time.monotonic() + PATIENCE
        while not all(any(text in line for line in self._screen.display) for text in texts):
            assert time.monotonic() < deadline, "\n".join(self._screen.display)
            self._viewer.reads(1)
            self._stream.feed(self._viewer.seen)
            self._viewer.seen = b""
        return [line.rstrip() for line in self._screen.display]


Watch = Callable[..., Viewer]


@contextlib.contextmanager
def watching(session: Session) -> Iterator[Watch]:
    """Opens viewers; afterwards they are gone, and so are the shells they looked at."""
    viewers: list[Viewer] = []

    def watch(query: str = "", **options: Any) -> Viewer:
        viewers.append(Viewer(session, query, **options))
        return viewers[-1]

    yield watch
    for viewer in viewers:
        viewer.leave()
    for name in {viewer.ready["execution_id"] for viewer in viewers}:
        session.stack.call("DELETE", f"/v1/sessions/{session.id}/executions/{name}")


@pytest.fixture
def watch(session: Session) -> Iterator[Watch]:
    with watching(session) as watch:
        yield watch


@pytest.fixture
def viewer(watch: Watch) -> Viewer:
    return watch()


@pytest.fixture(scope="module")
def small() -> Iterator[Stack]:
    """A server with little patience, small logs and few streams, whose terminals another site may open."""
    settings = {
        "SANDBOX_ORIGINS": ELSEWHERE,
        "SANDBOX_TERMINAL_IDLE": "1",
        "SANDBOX_STREAMS_MAX": "4",
        "SANDBOX_LOG_LIMIT": "256k",
    }
    with running(**settings) as stack:
        yield stack


@pytest.fixture
def small_session(small: Stack) -> Iterator[Session]:
    session = open_in(small)
    yield session
    session.close()


@pytest.fixture
def watch_small(small_session: Session) -> Iterator[Watch]:
    with watching(small_session) as watch:
        yield watch


@pytest.fixture(scope="module", autouse=True)
def deaf(session: Session) -> Iterator[Deaf]:
    """There from the first test on, so that the last one need not wait long for what becomes of it."""
    deaf = Deaf(session)
    yield deaf
    with contextlib.suppress(OSError):  # the server may have been first
        deaf.peer.shutdown(socket.SHUT_RDWR)
    deaf.thread.join(10)
    deaf.viewer.leave()


class Deaf:
    """A viewer that reads, and never answers a ping."""

    def __init__(self, session: Session) -> None:
        self.viewer = Viewer(session, "name=deaf")
        self.viewer.socket.pong = lambda *_: None
        self.peer = self.viewer.socket.sock
        self.pings = 0
        self.close = b""
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        self.viewer.socket.settimeout(80)
        with contextlib.suppress(websocket.WebSocketException, OSError):
            while not self.close:
                kind, data = self.viewer.socket.recv_data(control_frame=True)
                self.pings += kind == ABNF.OPCODE_PING
                self.close = data if kind == ABNF.OPCODE_CLOSE else b""


def knock(session: Session, query: str = "", **headers: str) -> requests.Response:
    """The answer to a handshake that is to be refused."""
    url = f"{session.stack.url}/v1/sessions/{session.id}/terminal?{query}"
    key = {"Authorization": f"Bearer {session.stack.key}"}
    return requests.get(url, headers={**HANDSHAKE, **key, **headers}, timeout=PATIENCE)


def ticket(session: Session, **wish: str) -> str:
    body = {"for": "terminal", **wish}
    answer = session.stack.call("POST", f"/v1/sessions/{session.id}/tickets", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["ticket"])


def executions(session: Session) -> dict[str, dict[str, Any]]:
    listed = session.stack.call("GET", f"/v1/sessions/{session.id}/executions").json()["executions"]
    return {one["execution_id"]: one for one in listed}


# Who may


def test_a_ticket_opens_the_terminal_once(session: Session, watch: Watch) -> None:
    one = ticket(session)
    viewer = watch(f"ticket={one}", header=[])
    viewer.types(b"echo with a tick''et\n")
    viewer.shows(b"with a ticket")
    problem(knock(session, f"ticket={one}", Authorization=""), 401, "unauthorized")


def test_the_url_of_a_ticket_is_the_terminals(session: Session) -> None:
    body = {"for": "terminal"}
    told = session.stack.call("POST", f"/v1/sessions/{session.id}/tickets", json=body).json()
    assert told["url"] == f"/v1/sessions/{session.id}/terminal?ticket={told['ticket']}"


def test_a_ticket_is_good_for_its_own_session_only(session: Session) -> None:
    other = open_in(session.stack)
    try:
        problem(knock(session, f"ticket={ticket(other)}", Authorization=""), 401, "unauthorized")
    finally:
        other.close()


def test_a_forged_ticket_is_none(session: Session) -> None:
    body, _, signature = ticket(session).partition(".")
    for forged in (
        f"{body}.{'0' * 64}",
        f"{body}A.{signature}",
        body,
        f".{signature}",
        "",
        "é.é",
        "a" * 5000,
    ):
        problem(knock(session, f"ticket={forged}", Authorization=""), 401, "unauthorized")


def test_a_ticket_is_good_for_a_minute(session: Session) -> None:
    """One that was issued 59 seconds ago opens; one of 61 seconds does not."""
    instance = load_instance(load({"SANDBOX_STATE_DIR": str(session.stack.dir / "state")}))
    key = session.stack.key.removeprefix("e2b_")[:16]

    def issued(seconds_ago: float) -> str:
        tickets = Tickets(instance, None, lambda: time.time() - seconds_ago)  # issuing asks no store
        return tickets.issue("terminal", key, session.id, "")[0]

    problem(knock(session, f"ticket={issued(61)}", Authorization=""), 401, "unauthorized")
    viewer = Viewer(session, f"ticket={issued(50)}&name=minute", header=[])
    viewer.leave()
    session.stack.call("DELETE", f"/v1/sessions/{session.id}/executions/terminal.minute")


def test_a_ticket_for_events_opens_no_terminal(session: Session) -> None:
    eid = session.execute("true").json()["execution_id"]
    one = ticket(session, **{"for": "events", "execution_id": eid})
    problem(knock(session, f"ticket={one}", Authorization=""), 401, "unauthorized")


def test_no_ticket_is_written_to_the_log(session: Session, watch: Watch) -> None:
    one = ticket(session)
    watch(f"ticket={one}", header=[]).leave()
    assert one not in session.stack.log("web")


def test_either_key_header_opens_a_terminal(session: Session, watch: Watch) -> None:
    watch(header=[f"X-API-Key: {session.stack.key}"])
    problem(knock(session, Authorization="Bearer e2b_" + "0" * 80), 401, "unauthorized")


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1.evil.example", "http://127.0.0.1:1", ""]
)
def test_a_page_of_another_site_is_refused_before_the_upgrade(session: Session, origin: str) -> None:
    before = executions(session).keys()
    problem(knock(session, Origin=origin, name="stranger"), 403, "forbidden_origin")
    assert executions(session).keys() == before


def test_pages_of_our_own_and_of_allowed_sites_may(small: Stack, watch_small: Watch) -> None:
    for origin in (small.url, small.url.replace("http", "https"), ELSEWHERE, ELSEWHERE.upper()):
        watch_small(origin=origin).leave()
    watch_small(suppress_origin=True)


def test_a_plain_get_is_a_problem_and_starts_nothing(session: Session) -> None:
    path = f"/v1/sessions/{session.id}/terminal?name=plain"
    refused(session.stack.call("GET", path), "Upgrade")
    refused(knock(session, "name=plain", **{"Sec-WebSocket-Version": "8"}), "Upgrade")
    assert "terminal.plain" not in executions(session)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("name=a/b", "name"),
        ("name=", "name"),
        ("cols=0", "cols"),
        ("rows=1001", "rows"),
        ("after=-1", "after"),
    ],
)
def test_a_wrong_wish_is_named(session: Session, query: str, field: str) -> None:
    refused(knock(session, query), field)


def test_the_terminal_of_another_tenants_session_is_not_found(session: Session) -> None:
    """The same answer as for one that never was."""
    stranger = {"Authorization": f"Bearer {session.stack.new_key('terminal-stranger')}"}
    told = problem(knock(session, **stranger), 404, "session_not_found")
    nowhere = Session(session.stack, "0" * 32, {})
    assert told.keys() == problem(knock(nowhere, **stranger), 404, "session_not_found").keys()


def test_more_viewers_than_streams_are_refused(small_session: Session, watch_small: Watch) -> None:
    for number in range(4):
        watch_small(f"name=n{number % 2}")
    told = problem(knock(small_session), 429, "too_many_streams")
    assert (told["limit"], told["allowed"], told["scope"]) == ("streams", 4, "tenant")


# What a person sees and types


def test_characters_of_several_bytes_pass_both_ways(viewer: Viewer) -> None:
    viewer.types("printf '%s\\n' 'žluťoučký 漢字 🐍' | tr -d ' '\n".encode())
    viewer.shows("žluťoučký漢字🐍".encode())


def test_backspace_takes_a_whole_character(viewer: Viewer) -> None:
    viewer.types(b"sh -c \"echo rea''dy; exec cat\"\n")
    viewer.shows(b"ready\r\n")
    viewer.types("a漢\x7fb\n".encode())
    viewer.shows(b"\nab\r\n")


def test_escape_sequences_pass_unchanged(viewer: Viewer) -> None:
    viewer.types(b"tput colors; printf '\\033[38;5;196m\\033]0;title\\007\\033[38;2;1;2;3mred\\033[0m\\n'\n")
    viewer.shows(b"256\r\n")
    viewer.shows(re.escape(b"\x1b[38;5;196m\x1b]0;title\x07\x1b[38;2;1;2;3mred\x1b[0m\r\n"))


def test_a_bracketed_paste_is_not_run_line_by_line(viewer: Viewer) -> None:
    viewer.shows(re.escape(b"\x1b[?2004h"))
    viewer.types(b"\x1b[200~echo o''ne\necho t''wo\x1b[201~")
    viewer.shows(b"t''wo")
    viewer.says(type="ping")
    viewer.hears("pong")
    assert b"one" not in viewer.seen
    viewer.types(b"\r")
    viewer.shows(b"one\r\ntwo\r\n")


def test_ctrl_c_interrupts_what_runs(viewer: Viewer) -> None:
    viewer.types(b"sh -c \"echo begi''ns; exec sleep 100\"\n")
    viewer.shows(b"begins")
    viewer.types(CTRL_C)
    viewer.shows(b"\\$ ")
    viewer.types(b"echo $?.\n")
    viewer.shows(b"130\\.")


def test_jobs_are_stopped_and_taken_up_again(viewer: Viewer) -> None:
    viewer.types(b"sh -c \"echo begi''ns; exec sleep 100\"\n")
    viewer.shows(b"begins")
    viewer.types(CTRL_Z)
    viewer.shows(b"Stopped")
    viewer.types(b"bg; jobs\n")
    viewer.shows(b"Running")
    viewer.types(b"fg\n")
    viewer.shows(b'sleep 100"\r\n')
    viewer.types(CTRL_C)
    viewer.types(b"jobs; echo no''ne\n")
    viewer.shows(b"\rnone\r\n")


def test_the_end_of_the_shell_is_told_and_the_name_starts_anew(watch: Watch) -> None:
    for keys, code in ((b"exit 7\n", 7), (CTRL_D, 0)):
        viewer = watch()
        assert (viewer.ready["new"], viewer.ready["seq"]) == (True, 0)
        viewer.shows(b"\\$ ")
        viewer.types(keys)
        assert viewer.hears("exit")["exit_code"] == code
        assert viewer.ends()[0] == 1000


def test_the_end_is_told_to_one_who_types_on(viewer: Viewer) -> None:
    """Keys that come too late for the shell are no reason to keep back how it ended."""
    viewer.shows(b"\\$ ")
    viewer.types(b"exit 7\n")
    with contextlib.suppress(OSError, websocket.WebSocketException):
        for _ in range(300):
            viewer.types(b"x")
            time.sleep(0.001)
    assert viewer.hears("exit")["exit_code"] == 7


def test_a_program_hears_of_a_new_size(watch: Watch) -> None:
    viewer = watch("cols=100&rows=30")
    assert (viewer.ready["cols"], viewer.ready["rows"]) == (100, 30)
    viewer.types(b"""bash -c "trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done"\n""")
    viewer.shows(b"30 100\r\n")
    viewer.says(type="resize", cols=133, rows=44)
    viewer.shows(b"44 133\r\n")
    watch("cols=71&rows=17")  # one size for all: that of whoever came last
    viewer.shows(b"17 71\r\n")


def test_vim_edits_a_file(session: Session, viewer: Viewer) -> None:
    screen = Screen(viewer)
    viewer.types(b"vim.tiny edited.txt\n")
    screen.shows('"edited.txt" [New]')
    viewer.types(b"ihello, screen")
    lines = screen.shows("hello, screen", "~")
    assert lines[0] == "hello, screen"
    viewer.types(b"\x1byyp0ciWsecond\x1b:wq\n")
    screen.shows("written", "$ ")
    assert session.output("cat edited.txt; rm edited.txt") == "hello, screen\nsecond screen\n"


def test_top_fills_the_screen_and_keeps_to_its_size(watch: Watch) -> None:
    viewer = watch("cols=90&rows=20")
    screen = Screen(viewer, 90, 20)
    viewer.types(b"top -d 0.2\n")
    lines = screen.shows("Tasks:", "PID USER", "top")
    assert lines[0].startswith("top - ")
    viewer.types(b"q")
    screen.shows("$ ")


# Several at once, and again


def test_several_watch_and_type(watch: Watch) -> None:
    first, second = watch(), watch()
    assert (first.ready["new"], second.ready["new"]) == (True, False)
    first.types(b"echo from-fir''st\n")
    for viewer in (first, second):
        viewer.shows(b"from-first\r\n")
    second.types(b"echo from-seco''nd\n")
    for viewer in (first, second):
        viewer.shows(b"from-second\r\n")


def test_each_name_is_a_terminal_of_its_own(watch: Watch) -> None:
    ttys = set()
    for name in ("one", "two"):
        viewer = watch(f"name={name}")
        assert viewer.ready["execution_id"] == f"terminal.{name}.1"
        viewer.types(b"tty\n")
        ttys.add(viewer.shows(b"/dev/pts/\\d+")[0])
    assert len(ttys) == 2


def test_who_joins_without_a_size_leaves_the_screen_as_it_is(watch: Watch) -> None:
    first = watch("cols=132&rows=43")
    second = watch()
    assert (second.ready["cols"], second.ready["rows"]) == (132, 43)
    first.types(b"stty size\n")
    first.shows(b"43 132\r\n")
    third = watch("cols=100&rows=30")
    third.types(b"stty size\n")
    third.shows(b"30 100\r\n")


def test_a_position_counts_in_the_shell_it_was_told_of(watch: Watch) -> None:
    """Who comes back when another shell is there gets that one's history, and is told so."""
    first = watch()
    before = first.ready["execution_id"]
    first.types(b"exit\n")
    first.ends()
    second = watch()
    second.types(b"seq 500; echo do''ne\n")
    second.shows(b"done\r\n")
    back = watch(f"after=400&execution_id={before}")
    assert (back.ready["execution_id"], back.ready["seq"]) == (second.ready["execution_id"], 0)
    same = watch(f"after=400&execution_id={second.ready['execution_id']}")
    assert same.ready["seq"] == 400


def test_who_joins_gets_whole_lines_of_the_last_64_kib(watch: Watch) -> None:
    first = watch()
    first.types(b"seq -f line%.0f 20000; echo do''ne\n")
    first.shows(b"done\r\n")
    late = watch()
    late._receive(lambda: b"done\r\n" in late.seen, "the last line")
    history = late.seen[: late.seen.index(b"done\r\n")]
    assert 60 << 10 < len(history) <= 64 << 10
    lines = history.split()
    assert lines == [b"line%d" % number for number in range(20001 - len(lines), 20001)]


def test_who_comes_back_with_a_position_misses_nothing(watch: Watch) -> None:
    """Two who read by pieces have together what one has who read all along."""
    steady, cut = watch(), watch()
    steady.types(b"for i in $(seq 300); do echo line$i; sleep 0.002; done; echo do''ne\n")
    whole = b""
    while b"done\r\n" not in whole:
        cut.seen = b""
        at = cut.ready["seq"]
        assert at == len(whole)
        cut._receive(lambda: len(cut.seen) > 200 or b"done\r\n" in whole + cut.seen, "more")  # noqa: B023
        whole += cut.seen
        cut.leave()
        cut = watch(f"after={len(whole)}")
    steady._receive(lambda: b"done\r\n" in steady.seen, "the end")
    size = min(len(whole), len(steady.seen))
    assert whole[:size] == steady.seen[:size]


def test_a_position_that_is_no_longer_kept_is_told(watch_small: Watch) -> None:
    """`ready` says where the bytes begin that follow, so that a viewer's own count stays right."""
    first = watch_small()
    first.types(b"head -c 1000000 /dev/zero | tr '\\0' x; echo do''ne\n")
    first._receive(lambda: b"done\r\n" in first.seen[-100:], "the end")
    late = watch_small("after=200000")
    assert late.ready["seq"] > 800_000
    late._receive(lambda: b"done\r\n" in late.seen, "the end")
    end = late.ready["seq"] + late.seen.index(b"done\r\n") + 6
    assert watch_small(f"after={end}").ready["seq"] == end


def test_a_terminal_outlives_the_web(small: Stack, small_session: Session, watch_small: Watch) -> None:
    """The server dies in the middle: who comes back finds the same shell at the same place."""
    viewer = watch_small()
    viewer.types(b"x=kept; echo befo''re\n")
    viewer._receive(lambda: b"before\r\n" in viewer.seen, "before")
    at = viewer.seen.index(b"before\r\n") + 8
    viewer.types(b"sleep 0.5; echo meanwhi''le\n")
    viewer.shows(b"meanwhi''le\r\n")
    small.kill("web", signal.SIGKILL)
    small.start_web()
    small.wait_ready()
    again = watch_small(f"after={at}")
    assert (again.ready["new"], again.ready["seq"]) == (False, at)
    again.types(b"echo $x-after\n")
    again.shows(b"meanwhile\r\n")
    again.shows(b"kept-after\r\n")


# When it ends


def test_a_closed_session_is_told(stack: Stack) -> None:
    session = open_in(stack)
    viewer = Viewer(session)
    viewer.shows(b"\\$ ")
    session.close()
    assert viewer.hears("problem")["problem"]["code"] == "session_ended"
    assert viewer.ends() == (1011, "session_ended")


def test_a_revoked_key_loses_its_terminals(stack: Stack) -> None:
    key = stack.new_key("revoked-terminal")
    body = stack.call("POST", "/v1/sessions", key=key, json={}).json()
    session = Session(stack, body["session_id"], body)
    viewer = Viewer(session, header=[f"X-API-Key: {key}"])
    stack.ctl("key", "revoke", key.removeprefix("e2b_")[:16])
    began = time.monotonic()
    assert viewer.hears("problem")["problem"]["code"] == "unauthorized"
    assert viewer.ends() == (1008, "unauthorized")
    assert time.monotonic() - began < 10
    another = stack.new_key("revoked-terminal")
    stack.call("DELETE", f"/v1/sessions/{session.id}", key=another)


def test_an_idle_viewer_is_let_go_and_the_shell_stays(watch_small: Watch) -> None:
    viewer = watch_small()
    viewer.types(b"x=kept\n")
    viewer.shows(b"kept")
    assert viewer.ends() == (1000, "idle")
    again = watch_small()
    assert again.ready["new"] is False
    again.types(b"echo $x-still\n")
    again.shows(b"kept-still")


# What no viewer can break


def test_malformed_messages_are_answered_not_hung_up_on(viewer: Viewer) -> None:
    wrong = ["{", "null", "[]", '"x"', '{"type": "dance"}', '{"type": "resize", "cols": -1, "rows": 5}']
    wrong += ['{"type": "resize", "cols": 65535, "rows": 65535}', '{"type": "input", "data": 5}', "é" * 1000]
    for text in wrong:
        viewer.socket.send(text)
        assert viewer.hears("problem")["problem"]["status"] == 400
    viewer.socket.send(b"\xff\xfe", ABNF.OPCODE_TEXT)
    assert viewer.hears("problem")["problem"]["status"] == 400
    viewer.says(type="input", data="echo still th''ere\n")
    viewer.shows(b"still there")


def test_a_message_may_come_in_pieces(viewer: Viewer) -> None:
    """With a ping in between, as the protocol allows."""
    for opcode, fin, data in (
        (ABNF.OPCODE_BINARY, 0, b"echo in pie"),
        (ABNF.OPCODE_PING, 1, b"there?"),
        (ABNF.OPCODE_CONT, 0, b"'"),
        (ABNF.OPCODE_CONT, 1, b"'ces\n"),
    ):
        viewer.socket.send_frame(ABNF(fin, 0, 0, 0, opcode, 1, data))
    viewer.shows(b"in pieces\r\n")


@pytest.mark.parametrize(
    "garbage", [b"\x82\x01a", b"\x83\x80\0\0\0\0", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 20], ids=repr
)
def test_what_is_not_the_protocol_ends_the_connection_only(watch: Watch, garbage: bytes) -> None:
    """An unmasked frame, an unknown opcode, HTTP, noise."""
    viewer, other = watch(), watch()
    viewer.socket.sock.sendall(garbage)
    assert viewer.ends()[0] == 1002
    other.types(b"echo unha''rmed\n")
    other.shows(b"unharmed")


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_message_over_a_mebibyte_is_refused(viewer: Viewer, pieces: int) -> None:
    data = b"a" * ((3 << 20) // pieces)
    with contextlib.suppress(OSError, websocket.WebSocketException):
        for number in range(pieces):
            opcode = ABNF.OPCODE_CONT if number else ABNF.OPCODE_BINARY
            viewer.socket.send_frame(ABNF(int(number == pieces - 1), 0, 0, 0, opcode, 1, data))
    assert viewer.ends()[0] == 1009


def test_who_leaves_during_the_handshake_is_no_trouble(session: Session, watch: Watch) -> None:
    """Many who hang up at once: nothing fails, nothing stays counted."""
    watch("name=hasty")
    before = len(session.stack.log("web"))
    head = "".join(f"{name}: {value}\r\n" for name, value in HANDSHAKE.items())
    head += f"Host: 127.0.0.1\r\nAuthorization: Bearer {session.stack.key}\r\n\r\n"
    for number in range(20):
        with socket.create_connection(("127.0.0.1", session.stack.port), timeout=10) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.sendall(f"GET /v1/sessions/{session.id}/terminal?name=hasty HTTP/1.1\r\n{head}".encode())
            time.sleep(0.001 * number)
    watch("name=hasty").shows(b"\\$ ")
    assert "Traceback" not in session.stack.log("web")[before:]


def test_viewers_who_left_leave_room_for_others(stack: Stack) -> None:
    """More than 64 came and went, one after another; the next one is as welcome as the first."""
    session = open_in(stack)
    try:
        for _ in range(66):
            viewer = Viewer(session)
            viewer.shows(b"\\$ ")
            viewer.leave()
        viewer = Viewer(session)
        viewer.types(b"echo wel''come\n")
        viewer.shows(b"welcome")
        viewer.leave()
    finally:
        session.close()


def test_a_huge_paste_arrives_whole(viewer: Viewer) -> None:
    """900 KB of any bytes, typed before anybody reads them."""
    data = random.Random(1).randbytes(900_000)
    viewer.types(b"stty raw -echo; echo rea''dy; sleep 0.3; head -c 900000 | sha256sum; stty sane\n")
    viewer.shows(b"ready")
    viewer.types(data)
    viewer.shows(hashlib.sha256(data).hexdigest().encode())


def test_a_paste_that_nobody_reads_is_refused_whole(session: Session, viewer: Viewer) -> None:
    viewer.types(b"stty raw -echo; echo rea''dy; until [ -e go ]; do sleep 0.05; done; ")
    viewer.types(b"head -c 900000 | tr -d a | wc -c; stty sane\n")
    viewer.shows(b"ready")
    for _ in range(2):
        viewer.types(b"a" * 900_000)
    assert viewer.hears("problem")["problem"]["code"] == "stdin_full"
    session.output("touch go")
    viewer.shows(b"\n0\r?\n")
    session.output("rm go")


def web_memory(stack: Stack) -> int:
    """Resident bytes of all web workers."""
    master = stack.processes["web"].pid
    pids = Path(f"/proc/{master}/task/{master}/children").read_text().split()
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_a_viewer_that_does_not_read_harms_nobody(session: Session, watch: Watch) -> None:
    """During a flood: the server does not grow, another viewer goes on, and can end it."""
    stuck = watch("name=flood", sockopt=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)])
    other = watch("name=flood")
    before = web_memory(session.stack)
    stuck.types(b"yes flood\n")
    until = time.monotonic() + 3
    while time.monotonic() < until:
        other.shows(b"flood\r\n", times=1000)
        assert web_memory(session.stack) - before < 32 << 20
    other.types(CTRL_C)
    other.types(b"echo drai''ned\n")
    other.shows(b"drained")


def test_a_viewer_that_pauses_is_not_let_go(watch: Watch) -> None:
    """One that does not read for a few seconds during a flood gets the rest when it reads again."""
    viewer = watch("name=pause", sockopt=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)])
    viewer.types(b"timeout 2 yes; echo fini''shed\n")
    viewer.shows(b"y\r\n")
    time.sleep(6.5)  # longer than the server's own look at its viewers
    viewer.shows(b"finished")


def test_who_never_answers_is_pinged_and_then_let_go(deaf: Deaf) -> None:
    deaf.thread.join(80)
    assert deaf.pings >= 2
    assert (struct.unpack("!H", deaf.close[:2])[0], deaf.close[2:]) == (1011, b"no answer to pings")
