"""The machine, and the two installations in it: by quickstart, and by the ten commands.

Both are made when the first test asks for them, so that any of the checks can be run alone with -k.
QUICKSTART_VM_PLACE names a directory for a machine that is kept: the next run goes on where this one ended.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.front import make_certificate
from tests.e2e.test_ten_commands import NAME, ten_commands
from tests.hosts.record import ROOT
from tests.hosts.vm.installed import STATE, Installed
from tests.hosts.vm.machine import Machine

REPOSITORY = "/root/repository.git"
# What certbot would bring; its real program is installed and not used.
CERTBOT = f"#!/bin/sh -e\nmkdir -p /etc/letsencrypt/live && cp -R /root/tls /etc/letsencrypt/live/{NAME}\n"


@pytest.fixture(scope="session")
def machine() -> Iterator[Machine]:
    kept = os.environ.get("QUICKSTART_VM_PLACE")
    with tempfile.TemporaryDirectory(prefix="sbx-vm-", dir="/var/tmp") as place:
        if kept:
            Path(kept).mkdir(parents=True, exist_ok=True)
        one = Machine(Path(os.environ["QUICKSTART_VM_DIR"]), Path(kept or place), keep=bool(kept))
        try:
            one.boot()
            print(f"\n   The machine runs with {one.accelerator}.")
            bring_repository(one)
            yield one
        finally:
            one.stop()


def bring_repository(machine: Machine) -> None:
    """What was committed, in a repository from which the machine can clone and pull."""
    bundle = machine.place / "repository.bundle"
    subprocess.run(["git", "bundle", "create", "-q", bundle, "HEAD"], cwd=ROOT, check=True, timeout=120)
    machine.copy(bundle, "/root/repository.bundle")
    machine.run(
        f"git init --quiet --bare --initial-branch=main {REPOSITORY};"
        f"git -C {REPOSITORY} fetch --quiet --force /root/repository.bundle HEAD:main"
    )


@pytest.fixture(scope="session")
def quickstarted(machine: Machine) -> Installed:
    """By `./quickstart.sh` alone, as a person who has just cloned the project."""
    checkout = "/root/sandbox-server"
    machine.run(f"[ -d {checkout} ] || git clone --quiet {REPOSITORY} {checkout}")
    machine.run(f"cd {checkout} && git pull --quiet && ./quickstart.sh", seconds=3600, show=True)
    key = machine.run("grep -o 'e2b_[0-9a-f]*' ~/.config/sandbox/credentials.json").strip()
    return Installed(machine, checkout, f"{STATE}/env", key)


@pytest.fixture(scope="session")
def deployed(machine: Machine) -> Installed:
    """By the ten commands of docs/operations.md, with a local CA in certbot's place."""
    checkout = "/opt/sandbox-server"
    lines = [
        line.replace("NAME=sandbox.example.org", f"NAME={NAME}").replace("REPOSITORY", REPOSITORY)
        for line in ten_commands()
    ]
    bring_certificate(machine)
    if machine.run(f"ls -d {checkout} || true"):  # a machine that was kept
        lines = [f"cd {checkout}", lines[-1]]
    else:
        forget_quickstart(machine)
    told = machine.run("\n".join(lines), seconds=3600, show=True)
    server = Installed(machine, checkout, "/etc/sandbox-server.env", told.split()[-1])
    server.wait_ready()
    return server


def forget_quickstart(machine: Machine) -> None:
    """A state directory is for one of the two, and the ten commands are to install the engine themselves."""
    uninstall = (
        "cd /root/sandbox-server && ./quickstart.sh uninstall && apt-get remove --yes --quiet=2 docker.io"
    )
    machine.run(f"if [ -d /root/sandbox-server ]; then {uninstall}; fi", seconds=600, show=True)


def bring_certificate(machine: Machine) -> None:
    tls = machine.place / "tls"
    if not tls.exists():
        make_certificate(tls, name=NAME)
    machine.run("mkdir -p /root/tls")
    for ours, theirs in (
        ("chain.pem", "tls/fullchain.pem"),
        ("key.pem", "tls/privkey.pem"),
        ("ca.pem", "ca.crt"),
    ):
        machine.copy(tls / ours, f"/root/{theirs}")
    machine.write("/usr/local/bin/certbot", CERTBOT)
    machine.run(
        "chmod 755 /usr/local/bin/certbot; cp /root/ca.crt /usr/local/share/ca-certificates/;"
        f"update-ca-certificates; grep -q {NAME} /etc/hosts || echo 127.0.0.1 {NAME} >>/etc/hosts"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """What failed is told with the machine's logs."""
    report = yield
    machine = getattr(item, "funcargs", {}).get("machine")
    if report.failed and isinstance(machine, Machine):
        report.sections.append(("the machine", machine.logs()))
    return report
