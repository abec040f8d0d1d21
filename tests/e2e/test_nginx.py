"""deploy/nginx.conf in front of a real server: a session through it, and limits that fit the server's."""

from __future__ import annotations

import contextlib
import hashlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from stack import Stack

from server.config import load
from tests.e2e.front import CONF, make_certificate, program, running, site, write_configuration
from tests.e2e.installation import ROOT, free_port


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("nginx")
    place.chmod(0o755)
    return program(place)


def configuration(place: Path, port: int, upstream: int, around: str = "") -> Path:
    """Without TLS: test_nginx_tls.py has that."""
    (place / "log").mkdir()
    make_certificate(place / "tls")
    text = site(place, free_port(), port, upstream, {}).replace(f":{port} ssl http2;", f":{port};")
    return write_configuration(place, text, around)


@contextlib.contextmanager
def proxy(nginx: str, upstream: int) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="sbx-nginx-", dir="/tmp") as name:
        place, port = Path(name), free_port()
        place.chmod(0o755)  # nginx's workers are another user
        with running(nginx, place, configuration(place, port, upstream), port):
            yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def front(nginx: str, stack: Stack) -> Iterator[str]:
    with proxy(nginx, stack.port) as url:
        yield url


def test_a_session_works_through_the_proxy(front: str, stack: Stack) -> None:
    """Open, run, keep the shell's state, close: as without it."""
    with stack.client(url=front) as sandbox:
        sandbox.execute("cd /tmp && x=kept")
        assert sandbox.execute('echo "$x in $PWD"').output == "kept in /tmp\n"


def test_a_large_stdin_passes(front: str, stack: Stack) -> None:
    """50 MiB go through whole."""
    data = bytes(range(256)) * (50 * 4096)
    with stack.client(url=front) as sandbox:
        result = sandbox.execute("sha256sum", stdin=data, timeout=60)
    assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()


def test_an_upload_larger_than_other_bodies_passes(front: str, stack: Stack) -> None:
    data = bytes(range(256)) * (90 * 4096)
    headers = {"Authorization": f"Bearer {stack.key}"}
    answer = requests.post(f"{front}/upload", files={"file": ("big", data)}, headers=headers, timeout=60)
    assert answer.status_code == 201, answer.text
    assert answer.json()["files"][0]["sha256"] == hashlib.sha256(data).hexdigest()


def test_a_file_passes_both_ways_without_being_stored(front: str, stack: Stack) -> None:
    """Over the limit for other bodies, in chunks of no announced number, and byte for byte the same."""
    data = bytes(range(256)) * (90 * 4096)
    with stack.client(url=front) as sandbox:
        url = f"{front}/v1/sessions/{sandbox.session_id}/files/content?path=big"
        headers = {"Authorization": f"Bearer {stack.key}"}
        pieces = (data[at : at + (1 << 20)] for at in range(0, len(data), 1 << 20))
        sent = requests.put(url, data=pieces, headers=headers, timeout=60)
        assert (sent.status_code, sent.json()["size"]) == (201, len(data))
        got = requests.get(url, headers=headers, timeout=60)
        assert hashlib.sha256(got.content).digest() == hashlib.sha256(data).digest()
        assert (
            requests.put(url, data=b"", headers={**headers, "If-None-Match": "*"}, timeout=10).status_code
            == 409
        )


def test_what_nginx_refuses_is_a_problem(front: str) -> None:
    """A body over the limit is a 413 as the server would tell it, not a page of HTML."""
    with contextlib.suppress(requests.ConnectionError):  # nginx may hang up while we are still sending
        requests.post(f"{front}/execute", data=b" " * (81 << 20), timeout=60)
    # Only announced, so that the answer can always be read.
    answer = requests.post(
        f"{front}/execute", headers={"Content-Length": str(81 << 20), "Expect": "100-continue"}, timeout=60
    )
    assert answer.status_code == 413
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["code"] == "body_too_large"


def test_a_server_that_is_down_is_a_problem(nginx: str) -> None:
    """Nothing was sent to it, so it is safe to try again, and the answer says so."""
    with proxy(nginx, free_port()) as url:
        answer = requests.get(f"{url}/healthz", timeout=10)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "2")
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert (answer.json()["code"], answer.json()["retryable"]) == ("server_unavailable", True)


def test_the_server_still_checks_the_host(front: str) -> None:
    """The name that the client used is passed on, so SANDBOX_HOSTS holds behind the proxy."""
    answer = requests.get(f"{front}/healthz", headers={"Host": "elsewhere.example"}, timeout=10)
    assert (answer.status_code, answer.json()["code"]) == (421, "wrong_host")


def test_the_proxy_is_not_stricter_than_the_server() -> None:
    """Its limits leave room for the largest body and the longest command that the server accepts."""
    config, text = load({}), CONF.read_text()
    assert number(text, "client_max_body_size", "m") << 20 >= config.body_limit
    assert number(text, "client_max_body_size", "g") << 30 >= config.upload_limit
    assert number(text, "proxy_read_timeout", "s") >= 2 * config.timeout_max + 30
    assert number(text, "limit_conn sandbox_connections", "") > config.streams_max
    rate = re.search(r"rate=(\d+)r/s;", text)
    assert rate is not None and config.rate_execute == f"{rate[1]}/second"
    gunicorn = (ROOT / "deploy" / "gunicorn.conf.py").read_text()
    keepalive = re.search(r"^keepalive = (\d+)$", gunicorn, re.M)
    assert keepalive is not None
    assert number(text, "keepalive_timeout", "s") < int(keepalive[1])


def number(text: str, name: str, unit: str) -> int:
    found = re.search(rf"\b{name} (\d+){unit};", text)
    assert found is not None, name
    return int(found[1])
