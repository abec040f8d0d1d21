"""deploy/nginx.conf as it is shipped: TLS, HTTP/2, and what streams and terminals meet on the way."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import requests
import websocket
from stack import Stack

from tests.e2e.front import NAME, PATIENCE, Front, fronting, program, until

ELSEWHERE = "127.0.0.7"


@pytest.fixture(scope="module")
def front(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    place = tmp_path_factory.mktemp("nginx")
    place.chmod(0o755)
    with fronting(program(place), stack.port) as front:
        yield front


@pytest.fixture
def client(front: Front, stack: Stack) -> Iterator[httpx.Client]:
    """Speaks HTTP/2; what it asks at once goes over one connection."""
    headers = {"Authorization": f"Bearer {stack.key}"}
    context = front.context("h2", "http/1.1")
    with httpx.Client(
        base_url=front.url, http2=True, verify=context, headers=headers, timeout=PATIENCE
    ) as client:
        yield client


@pytest.fixture
def session(stack: Stack) -> Iterator[str]:
    opened = stack.call("POST", "/v1/sessions", json={})
    assert opened.status_code == 201, opened.text
    path = f"/v1/sessions/{opened.json()['session_id']}"
    yield path
    stack.call("DELETE", path)


def offering(front: Front, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = front.context()
    context.set_ciphers("ALL:@SECLEVEL=0")  # old versions are offered only so
    context.minimum_version = context.maximum_version = version
    return context


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_modern_tls_is_spoken(front: Front, version: ssl.TLSVersion) -> None:
    """With a certificate that holds, forward secrecy, and nothing but AEAD."""
    with front.connect(offering(front, version)) as connection:
        cipher = connection.cipher()
        assert cipher is not None
        assert connection.version() == version.name.replace("_", ".")
        assert "GCM" in cipher[0] or "CHACHA20" in cipher[0]
        assert cipher[0].startswith(("TLS_", "ECDHE-"))


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_tls_is_refused(front: Front, version: ssl.TLSVersion) -> None:
    with pytest.raises((ssl.SSLError, ConnectionResetError), match=r"(?i)alert|protocol|reset"):
        front.connect(offering(front, version))


def test_a_weak_cipher_is_refused(front: Front) -> None:
    """CBC and RSA key exchange are what the attacks of the last decade lived on."""
    context = offering(front, ssl.TLSVersion.TLSv1_2)
    context.set_ciphers("AES128-SHA:ECDHE-RSA-AES128-SHA:ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        front.connect(context)


def test_http2_is_spoken_and_the_browser_is_told_to_stay_with_tls(client: httpx.Client) -> None:
    answer = client.get("/healthz")
    assert (answer.http_version, answer.status_code) == ("HTTP/2", 200)
    assert answer.headers["Strict-Transport-Security"] == "max-age=31536000"


def test_plain_http_is_sent_to_https(front: Front) -> None:
    """To the configured name, whatever the client calls us; a POST stays one."""
    url = f"http://127.0.0.1:{front.plain}/v1/sessions?limit=1"
    answer = requests.post(url, headers={"Host": "evil.example"}, allow_redirects=False, timeout=PATIENCE)
    assert answer.status_code == 308
    assert answer.headers["Location"] == f"https://{NAME}/v1/sessions?limit=1"


def test_the_certificates_issuer_finds_its_challenge(front: Front) -> None:
    token = front.place / "acme" / ".well-known" / "acme-challenge" / "token"
    token.parent.mkdir(parents=True)
    token.write_text("token.thumbprint")
    for path in (token.parents[1], token.parent):
        path.chmod(0o755)
    url = f"http://127.0.0.1:{front.plain}/.well-known/acme-challenge"
    assert requests.get(f"{url}/token", timeout=PATIENCE).text == "token.thumbprint"
    missing = requests.get(f"{url}/other", timeout=PATIENCE)
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


def test_each_event_arrives_when_it_happens(client: httpx.Client, session: str) -> None:
    """Over TLS and one HTTP/2 connection: the next line is asked for only when the one before has arrived."""
    body = {"command": "while read line; do echo got $line; done", "background": True, "stdin": "pipe"}
    started = client.post(f"{session}/executions", json=body).json()
    path = f"{session}/executions/{started['execution_id']}"
    for accept in ("text/event-stream", "application/x-ndjson"):
        with client.stream("GET", f"{path}/events", headers={"Accept": accept}) as answer:
            assert (answer.http_version, answer.status_code) == ("HTTP/2", 200)
            assert answer.headers["Content-Type"].startswith(accept)
            events = events_in(answer)
            assert next(events)["event"] == "start"
            text = f"{accept}-again"
            assert client.post(f"{path}/input", json={"data": text + "\n"}).status_code == 204
            while text not in str(next(events).get("text", "")):
                pass


def events_in(answer: httpx.Response) -> Iterator[dict[str, object]]:
    for line in answer.iter_lines():
        data = line.removeprefix("data: ")
        if data.startswith("{"):
            yield json.loads(data)


def test_an_upload_reaches_the_server_before_it_is_whole(front: Front, stack: Stack, session: str) -> None:
    """Half of a body is enough for the server to refuse it: nginx does not collect it first."""
    head = (
        f"PUT {session}/files/content?path=/etc/passwd HTTP/1.1\r\nHost: 127.0.0.1:{front.tls}\r\n"
        f"X-API-Key: {stack.key}\r\nContent-Length: 1000000\r\n\r\n"
    )
    with front.connect() as connection:
        connection.sendall(head.encode() + b"x" * 1000)
        assert connection.recv(65536).startswith(b"HTTP/1.1 400")


def test_a_terminal_works_over_tls(front: Front, stack: Stack, session: str) -> None:
    """A WebSocket, from a page of our own origin; a browser asks for HTTP/1.1 for these."""
    viewer = websocket.create_connection(
        front.url.replace("https", "wss") + f"{session}/terminal",
        header=[f"X-API-Key: {stack.key}"],
        origin=front.url,
        timeout=PATIENCE,
        sslopt={"ca_certs": front.ca},
    )
    try:
        assert json.loads(viewer.recv())["type"] == "ready"
        viewer.send_binary(b"echo over-t''ls\n")
        shown = b""
        while b"over-tls\r\n" not in shown:
            shown += viewer.recv_data()[1]
    finally:
        viewer.shutdown()


def test_a_reload_of_nginx_keeps_streams(front: Front, client: httpx.Client, session: str) -> None:
    """As a new certificate makes one happen every two months: who is connected notices nothing."""
    body = {"command": "while read line; do echo got $line; done", "background": True, "stdin": "pipe"}
    started = client.post(f"{session}/executions", json=body).json()
    path = f"{session}/executions/{started['execution_id']}"
    with client.stream("GET", f"{path}/events") as answer:
        events = events_in(answer)
        assert next(events)["event"] == "start"
        before = workers(front)
        front.reload()
        until(lambda: bool(workers(front) - before), "nginx started no new worker")
        with httpx.Client(verify=front.context(), headers=dict(client.headers), timeout=PATIENCE) as other:
            sent = other.post(f"{front.url}{path}/input", json={"data": "after\n"})
        assert sent.status_code == 204
        assert next(events)["text"] == "got after\n"


def workers(front: Front) -> set[str]:
    return set(Path(f"/proc/{front.pid}/task/{front.pid}/children").read_text().split())


def test_the_servers_log_has_the_real_address_and_no_forged_one(front: Front, stack: Stack) -> None:
    """Whatever a client says of itself, in whichever header; one id finds the request in both logs."""
    forged = "".join(
        f"{name}: {value}\r\n"
        for name, value in {
            "X-Forwarded-For": "203.0.113.66",
            "X-Real-IP": "203.0.113.66",
            "Forwarded": "for=203.0.113.66",
            "X-Request-Id": "where-from-1",
        }.items()
    )
    asked = f"GET /v1/sessions?ticket=hidden HTTP/1.0\r\nHost: 127.0.0.1\r\n{forged}\r\n"
    assert b"401" in front.say(asked.encode(), source=ELSEWHERE).split(b"\r\n")[0]
    for log in (lambda: stack.log("web"), front.log):
        until(lambda log=log: "where-from-1" in log(), "the request is not in the log")  # type: ignore[misc]
        (line,) = (line for line in log().splitlines() if "where-from-1" in line)
        assert (json.loads(line)["address"], "203.0.113" in line) == (ELSEWHERE, False)
    assert "hidden" not in front.log()


def test_wrong_keys_are_counted_by_the_real_address(front: Front) -> None:
    """Another forged address for each guess does not help; who comes from elsewhere is not hurt."""

    def guess(number: int, source: str) -> bytes:
        head = f"GET /v1/sessions HTTP/1.0\r\nHost: 127.0.0.1\r\nX-Forwarded-For: 198.51.100.{number}\r\n\r\n"
        return front.say(head.encode(), source=source)

    answers = [guess(number, "127.0.0.8") for number in range(250)]
    limited = [answer for answer in answers if b" 429 " in answer.split(b"\r\n")[0]]
    assert limited and b"rate_limited" in limited[0]
    assert b" 401 " in guess(1, "127.0.0.9").split(b"\r\n")[0]


def test_many_streams_share_one_connection(client: httpx.Client, session: str) -> None:
    """A quick request is answered while 8 slow ones wait on the same HTTP/2 connection."""
    slow = [
        threading.Thread(
            target=client.post, args=(f"{session}/execute",), kwargs={"json": {"command": ["sleep", "3"]}}
        )
        for _ in range(8)
    ]
    for thread in slow:
        thread.start()
    assert (
        client.post(f"{session}/execute", json={"command": ["echo", "quick"]}).json()["stdout"] == "quick\n"
    )
    for thread in slow:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_client_that_does_not_speak_tls_is_told(front: Front) -> None:
    with socket.create_connection(("127.0.0.1", front.tls), PATIENCE) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 400")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "malformed_http"
