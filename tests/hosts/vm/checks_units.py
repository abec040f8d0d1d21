"""The server as docs/operations.md sets it up: systemd's units behind nginx, restarts, an upgrade."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.e2e.test_ten_commands import NAME, PAGE
from tests.engine.plain import open_in
from tests.hosts.vm.conftest import REPOSITORY
from tests.hosts.vm.installed import SLOW_SECONDS, STATE, Installed
from tests.hosts.vm.machine import HTTPS, Machine

UNITS = "sandbox-keeper sandbox-web"
(UPGRADE,) = re.findall(r"\*\*An upgrade\*\*.*?```sh\n(.*?)```", PAGE, re.S)
# A change that nobody can miss, in code that the web and the keeper load.
NEW_VERSION = """
rm -rf /root/next && git clone --quiet {repository} /root/next && cd /root/next
sed -i 's/__version__ = .*/__version__ = "{version}"/' server/__init__.py
git -c user.name=Lane -c user.email=lane@example.org commit --quiet --all -m "A version of the test's own"
git push --quiet origin HEAD:main
"""


@dataclass(frozen=True)
class Public:
    """The server by its public name, over TLS, as a client far away has it."""

    client: httpx.Client
    url: str

    def ask(self, method: str, path: str, **body: Any) -> httpx.Response:
        return self.client.request(
            method, self.url + path, json=body or None, extensions={"sni_hostname": NAME}
        )


@pytest.fixture(scope="module")
def public(deployed: Installed, machine: Machine) -> Iterator[Public]:
    trusted = ssl.create_default_context(cafile=str(machine.place / "tls" / "ca.pem"))
    transport = httpx.HTTPTransport(verify=trusted, http2=True, retries=5)
    headers = {"Host": NAME, "Authorization": f"Bearer {deployed.key}"}
    with httpx.Client(transport=transport, headers=headers, timeout=SLOW_SECONDS) as client:
        yield Public(client, f"https://127.0.0.1:{machine.ports[HTTPS]}")


def test_the_units_run_and_nothing_has_failed(deployed: Installed) -> None:
    machine = deployed.machine
    assert machine.run(f"systemctl is-active {UNITS} nginx docker").split() == ["active"] * 4
    assert machine.run(f"systemctl is-enabled {UNITS}").split() == ["enabled"] * 2
    assert machine.run("systemctl --failed --no-legend") == ""
    assert deployed.call("GET", "/readyz").json()["status"] == "ready"


def test_a_session_is_opened_and_used_over_https(public: Public) -> None:
    ready = public.ask("GET", "/readyz")
    assert (ready.http_version, ready.status_code, ready.json()["status"]) == ("HTTP/2", 200, "ready")
    session = public.ask("POST", "/create_session", user_id="ada").json()["session_id"]
    ran = public.ask("POST", "/execute", session_id=session, command="echo from the machine")
    assert ran.json()["stdout"] == "from the machine\n"
    assert public.ask("POST", "/cleanup", session_id=session).json()["status"] == "closed"
    assert public.ask("GET", "/metrics").status_code == 404


def test_a_stream_arrives_as_it_happens(public: Public) -> None:
    session = public.ask("POST", "/create_session", user_id="ada").json()["session_id"]
    body = {"command": "echo one; sleep 4; echo two", "stream": True}
    seen: dict[str, float] = {}
    with public.client.stream(
        "POST",
        f"{public.url}/v1/sessions/{session}/execute",
        json=body,
        extensions={"sni_hostname": NAME},
    ) as answer:
        for line in answer.iter_lines():
            for word in ("one", "two"):
                if line.startswith("data:") and f"{word}\\n" in line:
                    seen[word] = time.monotonic()
    assert seen["two"] - seen["one"] > 2
    public.ask("POST", "/cleanup", session_id=session)


def test_the_doctor_finds_nothing_of_weight_by_the_public_name(deployed: Installed) -> None:
    told = deployed.machine.run(
        f"cd {deployed.checkout}; set -a; . {deployed.settings}; export SANDBOX_API_KEY={deployed.key};"
        f".venv/bin/sandboxctl doctor --url https://{NAME}",
        SLOW_SECONDS,
    )
    assert told.startswith(("Grade A", "Grade B")), told
    assert "ok       public.stream" in told, told


def test_restarts_change_no_owner_and_keep_every_shell(deployed: Installed) -> None:
    """With files of a session and of a read-only snapshot below the state directory."""
    machine, session = deployed.machine, open_in(deployed)
    session.output("kept=yes; echo precious >mine; chmod 600 mine")
    at = f"/v1/sessions/{session.id}/snapshots"
    snapshot = deployed.call("POST", at, json={}).json()["snapshot_id"]
    assert machine.run(f"stat -c '%U:%G %a' {STATE}/instance").strip() == "root:sandbox-web 640"
    owners = (
        f"stat -c '%u:%g %a %n' {STATE} {STATE}/*; find {STATE}/volumes -name mine -printf '%u:%g %m %p\\n'"
    )
    before = machine.run(owners)
    assert before.count("/mine") == 2
    for unit in (*UNITS.split(), UNITS):
        machine.run(f"systemctl restart {unit}", SLOW_SECONDS)
        deployed.wait_ready()
        assert machine.run(owners) == before
        assert session.output("echo $kept; cat mine") == "yes\nprecious\n"
    assert deployed.call("DELETE", f"/v1/snapshots/{snapshot}").ok
    session.close()


def test_a_restart_of_the_engine_keeps_every_shell(deployed: Installed) -> None:
    """quickstart has turned live-restore on where it has installed the engine."""
    session = open_in(deployed)
    session.output("kept=yes")
    deployed.machine.run("systemctl restart docker", SLOW_SECONDS)
    deployed.wait_ready()
    assert session.output("echo $kept") == "yes\n"
    session.close()
    fresh = open_in(deployed)
    assert fresh.output("echo works") == "works\n"
    fresh.close()


def test_an_upgrade_keeps_every_shell_and_runs_the_new_code(deployed: Installed) -> None:
    machine, session, version = deployed.machine, open_in(deployed), f"0.1.{int(time.time())}"
    session.output("cd /tmp; kept=yes; echo precious >/workspace/mine")
    machine.run(NEW_VERSION.format(repository=REPOSITORY, version=version), SLOW_SECONDS)
    machine.run(UPGRADE, seconds=1800, show=True)
    deployed.wait_ready()
    assert deployed.call("GET", "/v1/version").json()["version"] == version
    assert session.output("echo $kept in $PWD; cat /workspace/mine") == "yes in /tmp\nprecious\n"
    assert machine.run("ls /var/backups/sandbox-server").strip()
    session.close()
    deployed.wait_without_leaks()
