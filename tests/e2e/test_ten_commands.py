"""docs/operations.md, from a bare VPS to HTTPS: its ten commands are taken from the page and run.

What would change this machine is done in its place by small programs of the same names: packages and users
are not installed, certbot is a local CA, systemctl starts what the units say. Places and ports differ.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from stack import IMAGE_TAG, interpreter

from tests.e2e.front import make_certificate, program
from tests.e2e.installation import ROOT, free_port

pytestmark = pytest.mark.timeout(300)
NAME = "vps.example.net"
PAGE = (ROOT / "docs" / "operations.md").read_text()
NGINX = (ROOT / "tests" / "unit" / "captured" / "debian-nginx.conf").read_text()

# What a unit's command is started with; its pid is kept for the end of the test.
SYSTEMCTL = """
import os, re, shlex, subprocess, sys
root, etc, words = sys.argv[1], sys.argv[1] + "/etc", sys.argv[2:]
def start(name, argv, env, cwd):
    log = open(f"{root}/{name}.log", "ab")
    done = subprocess.Popen(argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                            start_new_session=True)
    open(f"{root}/pids", "a").write(f"{done.pid}\\n")
if words[:2] == ["enable", "--now"]:
    for unit in words[2:]:
        text = open(f"{etc}/systemd/system/{unit}.service").read()
        line = lambda key: re.search(rf"^{key}=(.*)$", text, re.M)
        settings = [row.split("=", 1) for row in open(line("EnvironmentFile")[1]).read().splitlines()
                    if row and row[0] != "#"]
        env = {**os.environ, **dict(settings), "PYTHONPATH": line("WorkingDirectory")[1]}
        for before in re.findall(r"^ExecStartPre=(-?)(.*)$", text, re.M):
            subprocess.run(shlex.split(before[1]), env=env, cwd=root, check=not before[0])
        start(unit, shlex.split(line("ExecStart")[1]), env, line("WorkingDirectory")[1])
elif words == ["reload", "nginx"]:
    nginx = [os.environ["NGINX"], "-c", f"{etc}/nginx/nginx.conf", "-g", "daemon off;"]
    start("nginx", nginx, os.environ, root)
"""


@dataclass(frozen=True)
class Vps:
    root: Path
    tls: int
    port: int
    env: dict[str, str]

    def run(self, line: str) -> subprocess.CompletedProcess[str]:
        """All lines in one shell, as a person types them; it stops at the first that fails."""
        command = ["bash", "-euo", "pipefail", "-c", line]
        return subprocess.run(
            command, env=self.env, cwd=self.root, capture_output=True, text=True, timeout=240
        )


def ten_commands() -> list[str]:
    section = PAGE.split("## From a bare VPS to HTTPS in ten commands")[1].split("\n## ")[0]
    block = re.search(r"```sh\n(.*?)```", section, re.S)
    assert block is not None
    return block[1].strip().splitlines()


def test_there_are_exactly_ten() -> None:
    commands = ten_commands()
    assert len(commands) == 10
    assert not any(line.startswith("#") or line.endswith("\\") for line in commands)


@pytest.fixture
def vps(installed: Path) -> Iterator[Vps]:
    root = Path(tempfile.mkdtemp(prefix="sbxvps-", dir="/var/tmp"))
    root.chmod(0o755)
    vps = Vps(root, free_port(), free_port(), dict(os.environ))
    try:
        furnish(vps, installed)
        yield vps
    finally:
        remove(vps)


def furnish(vps: Vps, installed: Path) -> None:
    root = vps.root
    for folder in ("bin", "www", "etc/systemd/system", "etc/nginx/conf.d", "log", "tmp"):
        (root / folder).mkdir(parents=True)
    for folder in ("etc/nginx/sites-enabled", "etc/nginx/modules-enabled"):
        (root / folder).mkdir()
    temporary = "".join(
        f"{name}_temp_path {root}/tmp/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = adapted(vps, NGINX).replace("user www-data;", "").replace("/run/nginx.pid", f"{root}/nginx.pid")
    (root / "etc/nginx/mime.types").write_text("types { text/html html; }\n")
    (root / "etc/nginx/nginx.conf").write_text(text.replace("http {", f"http {{ {temporary}", 1))
    (root / "etc/nginx/sites-enabled/default").write_text("server { listen 80 default_server; }\n")
    bring_repository(vps, installed)
    make_programs(vps)


def adapted(vps: Vps, text: str) -> str:
    """Only places and ports."""
    for ours, there in (
        ("/opt/sandbox-server", f"{vps.root}/opt"),
        ("/var/lib/sandbox-server", f"{vps.root}/state"),
        ("/var/www/html", f"{vps.root}/www"),
        ("/var/log/nginx", f"{vps.root}/log"),
        ("/etc/", f"{vps.root}/etc/"),
        ("127.0.0.1:5000", f"127.0.0.1:{vps.port}"),
        ("listen 443 ssl http2;", f"listen 127.0.0.1:{vps.tls} ssl http2;"),
        ("listen 80;", f"listen 127.0.0.1:{free_port()};"),
        ("sandbox-web\n", "nobody\n"),
    ):
        text = text.replace(ours, there)
    return re.sub(r"^ *listen \[::\].*\n", "", text, flags=re.M)


def bring_repository(vps: Vps, installed: Path) -> None:
    """What `git clone` will give: the project, with a quickstart whose `setup` only makes .venv."""
    place = vps.root / "repository"
    shutil.copytree(installed, place, symlinks=True, copy_function=os.link, ignore=lambda *_: ["deploy"])
    shutil.copytree(installed / "deploy", place / "deploy")
    for path in (place / "deploy").iterdir():
        if path.suffix in (".conf", ".service", ".example"):
            path.write_text(adapted(vps, path.read_text()))
    with (place / "deploy" / "env.example").open("a") as env:
        env.write(f"SANDBOX_IMAGES=default=sandbox-server/default:{IMAGE_TAG}\n")
        env.write("SANDBOX_STORAGE_SIZE=1g\nSANDBOX_POOL_MAX=0\nSANDBOX_POOL_MIN=0\n")
    (place / "quickstart.sh").write_text(
        "#!/bin/sh -e\n[ $1 = setup ]; mkdir -p .venv/bin; cd .venv/bin\n"
        f"printf '#!/bin/sh\\nexec env PYTHONPATH={vps.root}/opt {interpreter()} \"$@\"\\n' >python\n"
        'printf \'#!/bin/sh\\nexec "$(dirname "$0")/python" -m server.ctl "$@"\\n\' >sandboxctl\n'
        "chmod 755 python sandboxctl\n"
    )
    (place / "quickstart.sh").chmod(0o755)


def make_programs(vps: Vps) -> None:
    root = vps.root
    (root / "systemctl.py").write_text(SYSTEMCTL)
    make_certificate(root / "tls", name=NAME)
    certificate = f"{root}/etc/letsencrypt/live/{NAME}"
    said = {
        "apt-get": "",
        "useradd": "",
        "git": f'[ "$1" = clone ]; mv {root}/repository "$3"',
        "certbot": f"mkdir -p {certificate}; cp {root}/tls/chain.pem {certificate}/fullchain.pem; "
        f"cp {root}/tls/key.pem {certificate}/privkey.pem",
        "systemctl": f'exec {sys.executable} {root}/systemctl.py {root} "$@"',
        "nginx": f'exec "$NGINX" -c {root}/etc/nginx/nginx.conf "$@"',
    }
    for name, script in said.items():
        path = root / "bin" / name
        path.write_text(f'#!/bin/sh -e\necho "{name} $*" >>{root}/said\n{script}\n')
        path.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SANDBOX_")}
    vps.env.clear()
    vps.env.update(kept, PATH=f"{root}/bin:{os.environ['PATH']}", NGINX=program(root))


def remove(vps: Vps) -> None:
    pids = vps.root / "pids"
    for pid in pids.read_text().split() if pids.exists() else ():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int(pid), signal.SIGTERM)
    for pid in pids.read_text().split() if pids.exists() else ():
        with contextlib.suppress(ChildProcessError):
            subprocess.run(["timeout", "60", "tail", f"--pid={pid}", "-f", "/dev/null"], check=True)
    if (vps.root / "state" / "instance").exists():
        tidy = f"set -a; . {vps.root}/etc/sandbox-server.env; cd {vps.root}/opt; "
        tidied = vps.run(tidy + ".venv/bin/sandboxctl close-all; .venv/bin/sandboxctl unmount")
        assert tidied.returncode == 0, tidied.stderr
    shutil.rmtree(vps.root)


def test_the_ten_commands_lead_to_a_server_with_https(vps: Vps) -> None:
    """The key that the last one prints opens a session by the public name, over TLS, and runs a command."""
    lines = [
        adapted(vps, line).replace("NAME=sandbox.example.org", f"NAME={NAME}") for line in ten_commands()
    ]
    done = vps.run("\n".join(lines))
    logs = [path.read_text()[-1500:] for path in vps.root.glob("*.log")]
    assert done.returncode == 0, (done.stderr, logs)
    key = done.stdout.split()[-1]
    assert key.startswith("e2b_")
    transport = httpx.HTTPTransport(verify=trusting(vps), http2=True, retries=5)
    headers = {"Host": NAME, "X-API-Key": key}
    with httpx.Client(transport=transport, headers=headers, timeout=60) as client:
        url, ask = f"https://127.0.0.1:{vps.tls}", {"sni_hostname": NAME}
        session = until_opened(client, url, ask)
        body = {"session_id": session, "command": "echo from the VPS"}
        ran = client.post(f"{url}/execute", json=body, extensions=ask)
        assert (ran.http_version, ran.json()["stdout"]) == ("HTTP/2", "from the VPS\n")
        assert client.post(f"{url}/cleanup", json={"session_id": session}, extensions=ask).status_code == 200
    said = (vps.root / "said").read_text()
    assert f"--domain {NAME}" in said and "install -y git nginx certbot" in said
    assert "sandbox.example.org" not in (vps.root / "etc/nginx/conf.d/sandbox.conf").read_text()
    assert (vps.root / "etc/sandbox-server.env").stat().st_mode & 0o777 == 0o640
    assert "worker_connections 8192;" in (vps.root / "etc/nginx/nginx.conf").read_text()


def trusting(vps: Vps) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(vps.root / "tls" / "ca.pem"))


def until_opened(client: httpx.Client, url: str, ask: dict[str, str]) -> str:
    """The processes have just been started: till they answer nginx says 503, retryable."""
    deadline = time.monotonic() + 120
    while True:
        answer = client.post(f"{url}/v1/sessions", json={}, extensions=ask)
        if answer.status_code == 201:
            return str(answer.json()["session_id"])
        assert answer.json()["retryable"], answer.text
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.2)
