"""deploy/nginx.conf as it is, in front of a real server: only its two addresses are changed."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from stack import Stack

from server.config import load
from tests.e2e.installation import ROOT, free_port

CONF = ROOT / "deploy" / "nginx.conf"


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The machine's nginx, or Debian's package unpacked for these tests alone."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if found:
        return found
    place = tmp_path_factory.mktemp("nginx")
    place.chmod(0o755)
    done = subprocess.run(["apt-get", "download", "nginx"], cwd=place, capture_output=True, text=True)
    if done.returncode:
        subprocess.run(["apt-get", "update"], check=True, capture_output=True, timeout=300)
        subprocess.run(["apt-get", "download", "nginx"], cwd=place, check=True, capture_output=True)
    (package,) = place.glob("*.deb")
    subprocess.run(["dpkg", "-x", package, place], check=True)
    return str(place / "usr" / "sbin" / "nginx")


def configuration(place: Path, port: int, upstream: int) -> Path:
    text = CONF.read_text()
    for address, ours in (
        ("listen 80;", f"listen 127.0.0.1:{port};"),
        ("server 127.0.0.1:5000 ", f"server 127.0.0.1:{upstream} "),
    ):
        assert text.count(address) == 1
        text = text.replace(address, ours)
    paths = " ".join(
        f"{name}_temp_path {place}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    path = place / "nginx.conf"
    path.write_text(
        f"daemon off; worker_processes 1; pid {place}/pid; error_log {place}/error.log;\n"
        f"events {{ worker_connections 512; }}\nhttp {{ access_log off; {paths}\n{text}\n}}\n"
    )
    return path


@contextlib.contextmanager
def proxy(nginx: str, upstream: int) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="sbx-nginx-", dir="/tmp") as name:
        Path(name).chmod(0o755)  # nginx's workers are another user
        yield from serving(nginx, Path(name), free_port(), upstream)


def serving(nginx: str, place: Path, port: int, upstream: int) -> Iterator[str]:
    command = [nginx, "-p", str(place), "-e", str(place / "error.log")]
    command += ["-c", str(configuration(place, port, upstream))]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    process = subprocess.Popen(command)
    try:
        wait_for(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)


def wait_for(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            requests.head(f"http://127.0.0.1:{port}/healthz", timeout=5)
            return
        except requests.ConnectionError:
            assert time.monotonic() < deadline, "nginx does not listen"
            time.sleep(0.02)


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
    with proxy(nginx, free_port()) as url:
        answer = requests.get(f"{url}/healthz", timeout=10)
    assert answer.status_code == 502
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["retryable"] is False


def test_the_server_still_checks_the_host(front: str) -> None:
    """The name that the client used is passed on, so SANDBOX_HOSTS holds behind the proxy."""
    answer = requests.get(f"{front}/healthz", headers={"Host": "elsewhere.example"}, timeout=10)
    assert (answer.status_code, answer.json()["code"]) == (421, "wrong_host")


def test_the_proxy_is_not_stricter_than_the_server() -> None:
    """Its limits leave room for the largest body and the longest command that the server accepts."""
    config, text = load({}), CONF.read_text()
    assert number(text, "client_max_body_size", "m") << 20 >= config.body_limit
    assert number(text, "proxy_read_timeout", "s") >= 2 * config.timeout_max + 30
    gunicorn = (ROOT / "deploy" / "gunicorn.conf.py").read_text()
    keepalive = re.search(r"^keepalive = (\d+)$", gunicorn, re.M)
    assert keepalive is not None
    assert number(text, "keepalive_timeout", "s") < int(keepalive[1])


def number(text: str, name: str, unit: str) -> int:
    found = re.search(rf"\b{name} (\d+){unit};", text)
    assert found is not None, name
    return int(found[1])
