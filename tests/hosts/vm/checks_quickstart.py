"""quickstart on a fresh Debian machine, and the README's commands after it."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.e2e.test_readme import blocks
from tests.hosts.vm.installed import Installed
from tests.hosts.vm.machine import Machine


def test_the_machine_is_what_users_have(machine: Machine) -> None:
    """systemd, control groups of version 2 alone, AppArmor as Debian has it."""
    assert machine.read("/proc/1/comm") == "systemd"
    assert machine.run("stat -fc %T /sys/fs/cgroup").strip() == "cgroup2fs"
    assert machine.read("/sys/module/apparmor/parameters/enabled") == "Y"
    assert machine.run("systemctl --failed --no-legend").strip() == ""


def test_quickstart_ends_with_a_server_that_is_ready(quickstarted: Installed) -> None:
    ready = quickstarted.call("GET", "/readyz").json()
    assert (ready["status"], ready["wall"], ready["storage"]) == ("ready", {}, None)
    assert quickstarted.machine.run("systemctl is-active docker").strip() == "active"
    assert quickstarted.machine.run("systemctl --failed --no-legend").strip() == ""


def test_the_engine_that_quickstart_installs_keeps_containers_over_its_restart(
    quickstarted: Installed,
) -> None:
    assert quickstarted.docker("info", "--format", "{{.LiveRestoreEnabled}}") == "true"
    with quickstarted.client() as sandbox:
        sandbox.execute("kept=yes")
        quickstarted.machine.run("systemctl restart docker", seconds=300)
        assert sandbox.execute("echo $kept").stdout == "yes\n"


def test_a_second_quickstart_changes_nothing(quickstarted: Installed) -> None:
    pids = "cat /var/lib/sandbox-server/quickstart/{keeper,web}.pid"
    before = quickstarted.machine.run(pids)
    told = quickstarted.machine.run(f"cd {quickstarted.checkout} && ./quickstart.sh", seconds=300)
    assert "The sandbox server answers" in told
    assert quickstarted.machine.run(pids) == before
    assert "readyz: 200" in quickstarted.machine.run(f"cd {quickstarted.checkout} && ./quickstart.sh status")


def test_the_readme_gives_what_it_says(quickstarted: Installed) -> None:
    (code,), (output,) = blocks("python"), blocks("text")
    python = f"cd {quickstarted.checkout} && .venv/bin/python -c {shlex.quote(code)}"
    assert quickstarted.machine.run(python, seconds=300) == output


@pytest.mark.parametrize(
    ("block", "wanted"), [(1, r"hello from Linux\nexit code 3\n$"), (2, "hello from user")]
)
def test_the_readmes_shell_blocks_work(quickstarted: Installed, block: int, wanted: str) -> None:
    script = f"cd {quickstarted.checkout}\n{blocks('sh')[block]}"
    assert re.search(wanted, quickstarted.machine.run(script, seconds=300))
