"""deploy/nginx.conf in front of a server, for tests: with a certificate of a local CA, on ports of its own.

Only addresses and places are changed, each of them exactly where the file has it.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.installation import ROOT, free_port

CONF = ROOT / "deploy" / "nginx.conf"
NAME = "sandbox.example.org"
PATIENCE = 30.0


def program(place: Path) -> str:
    """The machine's nginx, or Debian's package unpacked for these tests alone."""
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if found:
        return found
    done = subprocess.run(["apt-get", "download", "nginx"], cwd=place, capture_output=True, text=True)
    if done.returncode:
        subprocess.run(["apt-get", "update"], check=True, capture_output=True, timeout=300)
        subprocess.run(["apt-get", "download", "nginx"], cwd=place, check=True, capture_output=True)
    (package,) = place.glob("*.deb")
    subprocess.run(["dpkg", "-x", package, place], check=True)
    return str(place / "usr" / "sbin" / "nginx")


@dataclass(frozen=True)
class Front:
    """A running nginx: plain answers redirect, the rest is TLS."""

    place: Path
    plain: int
    tls: int
    pid: int

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.tls}"

    @property
    def ca(self) -> str:
        return str(self.place / "tls" / "ca.pem")

    def context(self, *protocols: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        context.set_alpn_protocols(list(protocols or ("http/1.1",)))
        return context

    def connect(self, context: ssl.SSLContext | None = None, source: str = "127.0.0.1") -> ssl.SSLSocket:
        """From an address of this machine's own: all of 127.0.0.0/8 is."""
        raw = socket.create_connection(("127.0.0.1", self.tls), PATIENCE, (source, 0))
        return (context or self.context()).wrap_socket(raw, server_hostname="127.0.0.1")

    def say(self, data: bytes, source: str = "127.0.0.1") -> bytes:
        """Send bytes as they are; what comes back."""
        with self.connect(source=source) as connection:
            connection.sendall(data)
            return read_all(connection)

    def reload(self) -> None:
        subprocess.run(["kill", "-HUP", str(self.pid)], check=True, timeout=10)

    def log(self) -> str:
        return (self.place / "log" / "sandbox.log").read_text()


def read_all(connection: socket.socket) -> bytes:
    """Until the announced end, or until nginx hangs up, which it may take its time for."""
    answer = b""
    with contextlib.suppress(ConnectionResetError, ssl.SSLError):
        while not is_whole(answer) and (piece := connection.recv(65536)):
            answer += piece
    return answer


def is_whole(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    return length is not None and len(body) >= int(length[1])


@contextlib.contextmanager
def fronting(
    nginx: str, upstream: int, changes: Mapping[str, str] | None = None, text: str | None = None
) -> Iterator[Front]:
    with tempfile.TemporaryDirectory(prefix="sbx-nginx-", dir="/tmp") as name:
        place, plain, tls = Path(name), free_port(), free_port()
        place.chmod(0o755)  # nginx's workers are another user
        make_certificate(place / "tls")
        for folder in ("log", "acme"):
            (place / folder).mkdir()
        path = write_configuration(place, site(place, plain, tls, upstream, changes or {}, text))
        with running(nginx, place, path, tls) as pid:
            yield Front(place, plain, tls, pid)


def site(
    place: Path, plain: int, tls: int, upstream: int, changes: Mapping[str, str], text: str | None = None
) -> str:
    ours = {
        "listen 80;": f"listen 127.0.0.1:{plain};",
        "listen [::]:80;": "",
        "listen 443 ssl http2;": f"listen 127.0.0.1:{tls} ssl http2;",
        "listen [::]:443 ssl http2;": "",
        "server 127.0.0.1:5000 ": f"server 127.0.0.1:{upstream} ",
        f"/etc/letsencrypt/live/{NAME}/fullchain.pem": f"{place}/tls/chain.pem",
        f"/etc/letsencrypt/live/{NAME}/privkey.pem": f"{place}/tls/key.pem",
        "root /var/www/html;": f"root {place}/acme;",
        **changes,
    }
    text = (text or CONF.read_text()).replace("/var/log/nginx/", f"{place}/log/")
    for shipped, instead in ours.items():
        assert text.count(shipped) == 1, shipped
        text = text.replace(shipped, instead)
    return text


def write_configuration(place: Path, text: str, around: str = "") -> Path:
    temporary = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = " ".join(f"{name}_temp_path {place}/{name};" for name in temporary)
    path = place / "nginx.conf"
    path.write_text(
        f"daemon off; worker_processes 1; pid {place}/pid; error_log {place}/error.log;\n"
        f"events {{ worker_connections 2048; }}\nhttp {{ access_log off; {paths} {around}\n{text}\n}}\n"
    )
    return path


@contextlib.contextmanager
def running(nginx: str, place: Path, path: Path, port: int) -> Iterator[int]:
    command = [nginx, "-p", str(place), "-e", str(place / "error.log"), "-c", str(path)]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, timeout=PATIENCE)
    assert checked.returncode == 0, checked.stderr
    process = subprocess.Popen(command)
    try:
        await_port(port)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=PATIENCE)


def await_port(port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
            return
        assert time.monotonic() < deadline, "nginx does not listen"
        time.sleep(0.02)


def until(check: Callable[[], bool], failing: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, failing
        time.sleep(0.05)


def make_certificate(place: Path, days: int = 30, name: str = NAME) -> None:
    """A CA, and a certificate of its for the name and for this machine."""
    place.mkdir()
    names = f"subjectAltName=DNS:{name},DNS:localhost,IP:127.0.0.1"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", str(days)]
    _openssl(
        "req",
        "-x509",
        *curve,
        "-subj",
        "/CN=test CA",
        "-addext",
        "keyUsage=critical,keyCertSign,cRLSign",  # Python 3.13 asks for it
        "-keyout",
        f"{place}/ca.key",
        "-out",
        f"{place}/ca.pem",
    )
    issued = [
        "-CA",
        f"{place}/ca.pem",
        "-CAkey",
        f"{place}/ca.key",
        "-addext",
        names,
        "-addext",
        "basicConstraints=CA:FALSE",
    ]
    _openssl(
        "req",
        "-x509",
        *curve,
        *issued,
        "-subj",
        f"/CN={name}",
        "-keyout",
        f"{place}/key.pem",
        "-out",
        f"{place}/chain.pem",
    )


def _openssl(*args: str) -> None:
    subprocess.run(["openssl", *args], check=True, capture_output=True, timeout=PATIENCE)
