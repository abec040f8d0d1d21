"""Event streams and terminals through deploy/nginx.conf, with a real nginx and a real browser."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import websocket
from stack import Stack, running
from websocket import ABNF

from tests.e2e import test_nginx
from tests.e2e.front import running as nginx_running
from tests.e2e.installation import free_port

nginx = test_nginx.nginx

PATIENCE = 30.0
STREAMS_MAX = 6
PAGE = """<!doctype html><title>test</title><script>
const asked = new URLSearchParams(location.search);
const seen = {text: "", opens: 0, errors: 0, ends: 0, closed: false};
const report = () => ({method: "POST", mode: "no-cors", body: JSON.stringify(seen)});
setInterval(() => fetch(asked.get("report"), report()), 200);
if (asked.has("events")) {
  const source = new EventSource(asked.get("events"));
  source.onopen = () => { seen.opens += 1; };
  source.onerror = () => { seen.errors += 1; seen.closed = source.readyState === EventSource.CLOSED; };
  source.addEventListener("stdout", (event) => { seen.text += JSON.parse(event.data).text; });
  source.addEventListener("end", () => { seen.ends += 1; });
} else {
  const socket = new WebSocket(asked.get("terminal").replace(/^/, "ws://" + location.host));
  socket.binaryType = "arraybuffer";
  socket.onopen = () => { socket.send(new TextEncoder().encode("echo from-a-bro''wser\\n")); };
  socket.onmessage = (event) => {
    seen.text += typeof event.data === "string" ? "" : new TextDecoder().decode(event.data);
  };
  socket.onclose = () => { seen.closed = true; };
}
</script>"""


@pytest.fixture(scope="module")
def own() -> Iterator[Stack]:
    with running(SANDBOX_STREAMS_MAX=str(STREAMS_MAX)) as stack:
        yield stack


@pytest.fixture(scope="module")
def front(nginx: str, own: Stack) -> Iterator[str]:
    with proxy(nginx, own) as url:
        yield url


@contextlib.contextmanager
def proxy(nginx: str, stack: Stack) -> Iterator[str]:
    """As shipped, on a machine whose nginx compresses everything it may; and one page for the browser."""
    with tempfile.TemporaryDirectory(prefix="sbx-nginx-", dir="/tmp") as name:
        place, port = Path(name), free_port()
        place.chmod(0o755)
        (place / "page.html").write_text(PAGE)
        compressing = "gzip on; gzip_types *; gzip_min_length 1;"
        path = test_nginx.configuration(place, port, stack.port, compressing)
        page = f"location = /page.html {{ root {place}; types {{ text/html html; }} }}\n"
        text, ours = path.read_text(), "    location / {\n        proxy_pass"
        assert text.count(ours) == 1
        path.write_text(text.replace(ours, page + ours))
        with nginx_running(nginx, place, path, port):
            yield f"http://127.0.0.1:{port}"


class Through:
    """A session, reached through the proxy."""

    def __init__(self, stack: Stack, front: str) -> None:
        self.stack, self.front = stack, front
        answer = self.call("POST", "/v1/sessions", json={})
        assert answer.status_code == 201, answer.text
        self.path = f"/v1/sessions/{answer.json()['session_id']}"

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.stack.key}", **options.pop("headers", {})}
        options = {"timeout": PATIENCE, **options}
        return requests.request(method, self.front + path, headers=headers, **options)

    def start(self, command: str, **fields: Any) -> str:
        body = {"command": command, "background": True, **fields}
        answer = self.call("POST", f"{self.path}/executions", json=body)
        assert answer.status_code == 201, answer.text
        return f"{self.path}/executions/{answer.json()['execution_id']}"

    @contextlib.contextmanager
    def events(self, path: str, **headers: str) -> Iterator[Iterator[dict[str, Any]]]:
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "gzip", **headers}
        with contextlib.closing(self.call("GET", f"{path}/events", headers=headers, stream=True)) as answer:
            assert answer.status_code == 200, answer.text
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            assert "Content-Encoding" not in answer.headers
            yield events_in(answer)

    def ticket(self, **wish: str) -> str:
        """The path that a page may ask for."""
        return str(self.call("POST", f"{self.path}/tickets", json=wish).json()["url"])

    def terminal(self, **options: Any) -> websocket.WebSocket:
        url = f"{self.front}{self.path}/terminal".replace("http", "ws", 1)
        return websocket.create_connection(
            url, header=[f"X-API-Key: {self.stack.key}"], timeout=PATIENCE, **options
        )


def events_in(answer: requests.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines(chunk_size=1):
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


@pytest.fixture
def session(own: Stack, front: str) -> Iterator[Through]:
    session = Through(own, front)
    yield session
    session.call("DELETE", session.path)


@pytest.fixture(scope="module", autouse=True)
def quiet(own: Stack, front: str) -> Iterator[Quiet]:
    """Two connections on which nothing happens, there from the first test on."""
    quiet = Quiet(Through(own, front))
    yield quiet
    quiet.end()


class Quiet:
    def __init__(self, session: Through) -> None:
        self.session = session
        self.kinds: queue.Queue[str] = queue.Queue()
        self.frames: queue.Queue[int] = queue.Queue()
        self.execution = session.start("sleep 600", timeout=700)
        self.terminal = session.terminal()
        self.threads = [threading.Thread(target=self._follow), threading.Thread(target=self._watch)]
        for thread in self.threads:
            thread.start()

    def _follow(self) -> None:
        with self.session.events(self.execution) as events:
            for event in events:
                self.kinds.put(event["event"])

    def _watch(self) -> None:
        with contextlib.suppress(websocket.WebSocketException, OSError):
            while True:
                self.frames.put(self.terminal.recv_data(control_frame=True)[0])

    def end(self) -> None:
        self.session.call("DELETE", self.session.path)
        for thread in self.threads:
            thread.join(PATIENCE)
        self.terminal.shutdown()


def until(check: Callable[[], bool], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def test_each_event_arrives_when_it_happens(session: Through) -> None:
    """The next line is asked for only when the one before has arrived: nothing is held back on the way."""
    execution = session.start("while read line; do echo got $line; done", stdin="pipe")
    with session.events(execution) as events:
        assert next(events)["event"] == "start"
        for number in range(5):
            answer = session.call("POST", f"{execution}/input", json={"data": f"{number}\n"})
            assert answer.status_code == 204
            assert next(events)["text"] == f"got {number}\n"
        session.call("POST", f"{execution}/input", json={"close": True})
        assert [event["event"] for event in events] == ["end"]


def test_a_stream_started_with_its_command_is_not_held_back_either(session: Through) -> None:
    body = {"command": "echo first; sleep 600", "stream": True, "timeout": 700}
    answer = session.call("POST", f"{session.path}/execute", json=body, stream=True)
    with contextlib.closing(answer):
        events = events_in(answer)
        assert [next(events)["event"] for _ in range(2)] == ["start", "stdout"]


def test_a_reader_takes_up_where_it_was(session: Through) -> None:
    """Cut again and again, each time with a few events read: no byte is lost and none comes twice."""
    execution = session.start("for i in $(seq 200); do echo line $i; sleep 0.003; done")
    text, last, kind = "", "", ""
    while kind != "end":
        with session.events(execution, **({"Last-Event-ID": last} if last else {})) as events:
            for event, _ in zip(events, range(8)):  # noqa: B905 - as many as there are
                text, last, kind = text + event.get("text", ""), str(event["seq"]), event["event"]
    assert text == "".join(f"line {number}\n" for number in range(1, 201))
    after_the_end = session.call("GET", f"{execution}/events", headers={"Last-Event-ID": last})
    assert after_the_end.status_code == 204


def test_hanging_up_reaches_the_server(session: Through) -> None:
    """A command that lives only for its reader ends with it."""
    body = {"command": "sleep 600", "stream": True, "kill_on_disconnect": True, "timeout": 700}
    answer = session.call("POST", f"{session.path}/executions", json=body, stream=True)
    events = events_in(answer)
    execution = f"{session.path}/executions/{next(events)['execution_id']}"
    assert session.call("GET", execution).json()["status"] == "running"
    answer.close()
    told = session.call("GET", f"{execution}?wait=20").json()
    assert (told["status"], told["result"]["cancelled"]) == ("ended", True)


def test_a_reader_who_left_is_no_longer_counted(session: Through) -> None:
    """Streams come and go, many times as many as may be open at once."""
    execution = session.start("sleep 600", timeout=700)

    def opens() -> bool:
        answer = session.call("GET", f"{execution}/events", stream=True)
        with contextlib.closing(answer):
            return answer.status_code == 200 and next(events_in(answer))["event"] == "start"

    for _ in range(3 * STREAMS_MAX):
        until(opens, 5)


def test_a_terminal_works_through_the_proxy(session: Through) -> None:
    """From a page of the proxy's own origin, port and all; another's is refused."""
    viewer = session.terminal(origin=session.front)
    try:
        assert json.loads(viewer.recv())["type"] == "ready"
        viewer.send_binary("echo žluť''oučký\n".encode())
        shown = b""
        while "žluťoučký\r\n".encode() not in shown:
            shown += viewer.recv_data()[1]
    finally:
        viewer.shutdown()
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        session.terminal(origin="http://evil.example")
    assert refused.value.status_code == 403


def test_a_terminal_through_the_proxy_takes_a_large_paste(session: Through) -> None:
    viewer = session.terminal()
    try:
        viewer.send_binary(b"stty raw -echo; echo rea''dy; head -c 900000 | wc -c; stty sane\n")
        shown = b""
        while b"ready" not in shown:
            shown += viewer.recv_data()[1]
        viewer.send_binary(b"x" * 900_000)
        while b"900000\n" not in shown:
            shown += viewer.recv_data()[1]
    finally:
        viewer.shutdown()


# A real browser


class Reports:
    """Where the page says what it has seen."""

    def __init__(self) -> None:
        self.last: dict[str, Any] = {}
        reports = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                reports.last = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Not on the terminal of whoever runs the tests."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def until(self, check: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while not (self.last and check(self.last)):
            assert time.monotonic() < deadline, {**self.last, "text": self.last.get("text", "")[-200:]}
            time.sleep(0.05)
        return self.last

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def reports() -> Iterator[Reports]:
    reports = Reports()
    yield reports
    reports.close()


@contextlib.contextmanager
def browser(front: str, reports: Reports, **query: str) -> Iterator[None]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program is not None, "these tests need a browser: apt-get install chromium"
    url = requests.Request("GET", f"{front}/page.html", params={"report": reports.url, **query}).prepare().url
    with tempfile.TemporaryDirectory(prefix="sbx-browser-", ignore_cleanup_errors=True) as profile:
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += ["--no-first-run", f"--user-data-dir={profile}", str(url)]
        env = {**os.environ, "HOME": profile}
        process = subprocess.Popen(
            command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)


def test_a_browser_follows_through_a_break_and_loses_nothing(nginx: str, reports: Reports) -> None:
    """The server dies and stays away for a while: the page comes back by itself, and stops at the end."""
    with running() as stack, proxy(nginx, stack) as front:
        session = Through(stack, front)
        execution = session.start("for i in $(seq 100); do echo line $i; sleep 0.05; done")
        url = session.ticket(**{"for": "events", "execution_id": execution.rpartition("/")[2]})
        with browser(front, reports, events=url):
            reports.until(lambda seen: "line 3\n" in seen["text"])
            stack.kill("web", signal.SIGKILL)
            reports.until(lambda seen: seen["errors"] >= 2)  # it tried again in vain
            stack.start_web()
            stack.wait_ready()
            seen = reports.until(lambda seen: bool(seen["closed"]))
    assert seen["text"] == "".join(f"line {number}\n" for number in range(1, 101))
    assert (seen["ends"], seen["opens"] >= 2) == (1, True)


def test_a_browser_opens_a_terminal_with_a_ticket(session: Through, reports: Reports) -> None:
    with browser(session.front, reports, terminal=session.ticket(**{"for": "terminal"})):
        reports.until(lambda seen: "from-a-browser\r\n" in seen["text"])


# What the quiet connections have met meanwhile


def test_a_quiet_stream_is_kept_alive(quiet: Quiet) -> None:
    assert [quiet.kinds.get(timeout=PATIENCE) for _ in range(3)] == ["start", "keepalive", "keepalive"]


def test_a_quiet_terminal_is_pinged(quiet: Quiet) -> None:
    deadline = time.monotonic() + PATIENCE
    while quiet.frames.get(timeout=max(0, deadline - time.monotonic())) != ABNF.OPCODE_PING:
        pass


def test_the_proxy_waits_longer_than_the_server_is_silent() -> None:
    """Keepalives every 10 s, pings every 25 s: no timeout of the proxy's is near."""
    for name in ("proxy_read_timeout", "proxy_send_timeout", "send_timeout"):
        assert test_nginx.number(test_nginx.CONF.read_text(), name, "s") > 2 * 25
