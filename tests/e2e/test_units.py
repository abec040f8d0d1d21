"""deploy/*.service: their commands, users, capabilities and environment file, run as systemd would run them.

systemd itself need not run; its filters of system calls are loaded as it would load them. What it does with
mounts (ProtectSystem and the like) is not covered here.
"""

from __future__ import annotations

import configparser
import os
import pwd
import re
import shlex
import socket
import subprocess
import time
from pathlib import Path

import pytest
import requests
from stack import Stack, interpreter

from server.config import load
from server.ctl.example import text
from tests.e2e.filtered import launcher, policy
from tests.e2e.installation import ROOT

pytestmark = pytest.mark.timeout(180)
NOBODY = pwd.getpwnam("nobody")


def path_of(name: str) -> Path:
    return ROOT / "deploy" / f"sandbox-{name}.service"


def unit(name: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # systemd's names have capitals
    parser.read(path_of(name))
    return dict(parser["Service"])


def environment_file() -> dict[str, str]:
    lines = (ROOT / "deploy" / "env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def command(service: dict[str, str], key: str) -> list[str]:
    """As systemd would start it: only the installed paths and the user's name are the test's own."""
    argv = shlex.split(service[key].replace("/opt/sandbox-server/.venv/bin/python", interpreter()))
    capabilities = service["CapabilityBoundingSet"].lower().replace("cap_", "+").replace(" ", ",")
    limits = [f"--bounding-set=-all{',' + capabilities if capabilities else ''}", "--no-new-privs"]
    if "User" in service:
        limits += [f"--reuid={NOBODY.pw_uid}", f"--regid={NOBODY.pw_gid}", "--clear-groups"]
    filtered = launcher(path_of("web" if "User" in service else "keeper"), interpreter())
    return ["setpriv", *limits, *filtered, *argv] if os.geteuid() == 0 else argv


def test_the_example_environment_is_valid() -> None:
    config = load(environment_file())
    assert (config.state_dir, config.web_user) == ("/var/lib/sandbox-server", "sandbox-web")


def test_the_example_environment_has_every_setting() -> None:
    """After a new setting: sandboxctl example >deploy/env.example"""
    assert (ROOT / "deploy" / "env.example").read_text() == text()


def test_the_units_agree_with_the_environment_file() -> None:
    """State directory and user are named in two places."""
    env, keeper, web = environment_file(), unit("keeper"), unit("web")
    assert all(path.startswith(f"-{env['SANDBOX_STATE_DIR']}/") for path in web["ReadWritePaths"].split())
    assert web["User"] == web["Group"] == env["SANDBOX_WEB_USER"]
    assert keeper["EnvironmentFile"] == web["EnvironmentFile"]
    assert keeper["WorkingDirectory"] == web["WorkingDirectory"] == "/opt/sandbox-server"


@pytest.mark.parametrize(("name", "most"), [("web", 2.0), ("keeper", 5.5)])
def test_systemd_knows_every_line_of_the_units_and_finds_them_tight(name: str, most: float) -> None:
    """The keeper mounts for the engine to see: the measures of systemd that hide mounts are not for it."""
    checked = subprocess.run(
        ["systemd-analyze", "verify", path_of(name)], capture_output=True, text=True, timeout=60
    )
    complaints = [line for line in checked.stderr.splitlines() if f"sandbox-{name}.service" in line]
    assert [line for line in complaints if "is not executable" not in line] == []
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", path_of(name)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", told.stdout)
    assert level is not None, told.stderr
    assert float(level[1]) <= most


def test_the_keepers_unit_gives_it_no_mounts_of_its_own() -> None:
    """Or the engine would not see what it mounts for sandboxes."""
    hiding = (
        "Protect",
        "Private",
        "ReadOnlyPaths",
        "ReadWritePaths",
        "InaccessiblePaths",
        "RootDirectory",
        "Bind",
    )
    assert [key for key in unit("keeper") if key.startswith(hiding)] == ["ProtectHostname"]


@pytest.mark.parametrize("name", ["web", "keeper"])
def test_systemd_is_given_no_directory_to_own(name: str) -> None:
    """It changes the owner of everything below such a directory: of the files of every workspace, too."""
    owning = ("StateDirectory", "CacheDirectory", "LogsDirectory", "RuntimeDirectory")
    assert [key for key in unit(name) if key.startswith(owning)] == []


def test_the_filters_refuse_what_they_should() -> None:
    """A web that is taken over loads no module, traces nobody, mounts nothing and stays who it is."""
    assert policy(path_of("web"))[0] == "allow"
    refused = {"mount", "ptrace", "init_module", "bpf", "setuid", "chroot", "reboot"}
    assert not refused & policy(path_of("web"))[1]
    assert {"init_module", "reboot", "ptrace", "swapon", "iopl"} <= policy(path_of("keeper"))[1]
    assert not {"mount", "umount2", "unshare", "setns"} & policy(path_of("keeper"))[1]


def test_a_server_started_as_the_units_say_works_and_survives_restarts(installed: Path) -> None:
    """Keeper with a few capabilities, web without any, each told to stop and started again meanwhile."""
    stack = new_stack(installed)
    try:
        start(stack)
        with stack.client() as sandbox:
            sandbox.execute("x=kept; mkdir -m 0 locked")
            sandbox.files.write("/workspace/up", b"x" * (5 << 20))
            assert len(sandbox.files.read("/workspace/up")) == 5 << 20
            before = sandbox.snapshot()
            sandbox.restore(before)
            sandbox.execute("x=kept")
            for name in ("web", "keeper"):
                stack.kill(name, 15)
            start(stack)
            assert sandbox.execute("echo $x").output == "kept\n"
    finally:
        stack.remove()


def test_gunicorn_tells_systemd_when_it_is_ready(installed: Path) -> None:
    """Type=notify: without this the unit would never count as started."""
    assert unit("web")["Type"] == "notify"
    stack = new_stack(installed)
    path = Path(stack.dir, "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(path))
        path.chmod(0o777)
        told.settimeout(60)
        stack.env["NOTIFY_SOCKET"] = str(path)
        try:
            start(stack)
            assert b"READY=1" in told.recv(4096)
        finally:
            stack.remove()


def new_stack(root: Path) -> Stack:
    settings = environment_file()
    ours = {name: settings[name] for name in settings if name not in ("SANDBOX_STATE_DIR", "SANDBOX_BIND")}
    return Stack(root, **ours | {"SANDBOX_WEB_USER": NOBODY.pw_name})


def start(stack: Stack) -> None:
    keeper, web = unit("keeper"), unit("web")
    subprocess.run(command(keeper, "ExecStartPre"), env=stack.env, cwd=stack.root, check=True, timeout=60)
    stack._start("keeper", command(keeper, "ExecStart"))
    stack._start("web", command(web, "ExecStart"))
    stack.wait_ready()
    deadline = time.monotonic() + 10  # a worker repeats its last answer for a moment
    while (status := requests.get(f"{stack.url}/readyz", timeout=10).json()["status"]) == "checking":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert status == "ready"
