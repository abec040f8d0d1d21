"""A sandbox on a real machine: its whole life, and its limits as control groups of version 2 have them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from expect import ended, eventually
from sandbox_client import SandboxClient

from tests.engine.plain import open_in
from tests.hosts.test_engines import (
    session,
    test_a_full_disk_is_told,
    test_a_quota_holds,
    test_a_timeout_ends_the_command_and_keeps_the_shell,
    test_commands_keep_their_state_and_streams_arrive,
    test_out_of_memory_is_told_and_the_shell_stays,
    test_paused_and_cold_sessions_wake_as_they_were,
    test_snapshots_bring_files_back_and_forks_have_their_own,
    test_the_wall_is_whole,
    test_what_a_session_uses_is_measured,
)
from tests.hosts.vm.installed import Group, Installed

# The engine's smoke, here on this machine.
__all__ = [
    "session",
    "test_a_full_disk_is_told",
    "test_a_quota_holds",
    "test_a_timeout_ends_the_command_and_keeps_the_shell",
    "test_commands_keep_their_state_and_streams_arrive",
    "test_out_of_memory_is_told_and_the_shell_stays",
    "test_paused_and_cold_sessions_wake_as_they_were",
    "test_snapshots_bring_files_back_and_forks_have_their_own",
    "test_the_wall_is_whole",
    "test_what_a_session_uses_is_measured",
]
MIB, MILLISECOND = 1 << 20, 0.001
GREEDY = "python3 -c 'b = bytearray(400 << 20)'"
LEFT = """
docker ps --all --quiet
docker images --quiet sandbox-server/default
ls -d /var/lib/sandbox-server /root/sandbox-server/.venv /root/.config/sandbox 2>/dev/null || true
getent passwd sandbox-web || true
findmnt --raw --noheadings --output TARGET | grep sandbox || true
losetup --list --noheadings
"""
SPIN = "for i in 1 2 3 4; do timeout 10 sh -c 'while :; do :; done' & done; wait"


@dataclass(frozen=True)
class Lane:
    """What the smoke of tests/hosts/test_engines.py runs on."""

    stack: Installed

    def docker(self, *words: str) -> str:
        return self.stack.docker(*words)


@pytest.fixture(scope="module")
def lane(quickstarted: Installed) -> Lane:
    return Lane(quickstarted)


Opened = tuple[SandboxClient, Group]


@pytest.fixture
def opened(quickstarted: Installed) -> Iterator[Callable[..., Opened]]:
    """Opens sandboxes, each with its control group on the host."""
    made: list[SandboxClient] = []

    def open_one(**wish: object) -> Opened:
        made.append(quickstarted.client(**wish))
        return made[-1], quickstarted.group_of(made[-1].session_id)

    yield open_one
    for sandbox in made:
        sandbox.close()


def test_the_limits_stand_in_the_control_group(opened: Callable[..., Opened]) -> None:
    """As the host has them, and as they are seen from inside."""
    sandbox, group = opened(memory="192m", cpus=0.5)
    limits = ("memory.max", "memory.swap.max", "pids.max", "cpu.max", "memory.oom.group", "cgroup.freeze")
    assert [group.read(name) for name in limits] == [str(192 * MIB), "0", "512", "50000 100000", "0", "0"]
    inside = sandbox.execute("cd /sys/fs/cgroup; cat memory.max cpu.max pids.max; mkdir x")
    assert inside.stdout.split("\n")[:3] == [str(192 * MIB), "50000 100000", "512"]
    assert inside.exit_code != 0


def test_out_of_memory_takes_the_command_alone(opened: Callable[..., Opened]) -> None:
    sandbox, group = opened(memory="128m")
    sandbox.execute("x=kept")
    for command in (GREEDY, ["python3", "-c", "b = bytearray(400 << 20)"]):
        before = group.table("memory.events")["oom_kill"]
        told = sandbox.execute(command, timeout=100)
        assert (told.exit_code, told.oom_killed) == (137, True)
        assert group.table("memory.events")["oom_kill"] > before
    assert not sandbox.execute("bash -c 'kill -9 $$'").oom_killed
    assert group.table("memory.events")["oom_group_kill"] == 0
    assert group.number("memory.peak") <= 128 * MIB
    assert sandbox.execute("echo $x").stdout == "kept\n"


def test_a_group_that_ends_as_a_whole_is_told(quickstarted: Installed) -> None:
    """memory.oom.group takes the guest along; cgroup.kill does so without a lack of memory."""
    session = open_in(quickstarted, memory=128 * MIB)
    quickstarted.group_of(session.id).write("memory.oom.group", "1")
    ended(session.execute(GREEDY, timeout=100), "oom")
    session = open_in(quickstarted)
    quickstarted.group_of(session.id).write("cgroup.kill", "1")
    ended(session.execute("true"), "killed")


def test_four_programs_get_what_the_quota_gives(opened: Callable[..., Opened]) -> None:
    """And that they waited for it shows in the throttling, and in the pressure stall information."""
    sandbox, group = opened(cpus=0.5)
    before, stalled, began = group.table("cpu.stat"), group.stalled("cpu"), time.monotonic()
    sandbox.execute(SPIN, timeout=100)
    after, took = group.table("cpu.stat"), time.monotonic() - began
    used = (after["usage_usec"] - before["usage_usec"]) / 1e6
    assert 1 < used < 0.5 * 1.2 * took
    assert after["nr_throttled"] > before["nr_throttled"]
    assert group.stalled("cpu") - stalled > 1e6
    assert sandbox.execute("cat /proc/pressure/cpu").exit_code != 0  # the host's is nobody's business


def test_a_fork_bomb_ends_at_its_limit(opened: Callable[..., Opened]) -> None:
    sandbox, group = opened()
    told = sandbox.execute("for i in $(seq 500); do sleep 60 & done; wait", timeout=60)
    assert "Resource temporarily unavailable" in told.stderr or told.timed_out
    assert group.number("pids.peak") <= 512
    assert sandbox.execute("echo alive").stdout == "alive\n"


def test_a_paused_sandbox_is_frozen_and_uses_nothing(opened: Callable[..., Opened]) -> None:
    sandbox, group = opened()
    sandbox.execute("x=kept; (while :; do date +%s%N >/workspace/tick; sleep 0.2; done) &")
    sandbox.pause()
    assert (group.read("cgroup.freeze"), group.table("cgroup.events")["frozen"]) == ("1", 1)
    before = group.table("cpu.stat")["usage_usec"]
    time.sleep(3)
    assert group.table("cpu.stat")["usage_usec"] == before
    assert sandbox.execute("echo $x").stdout == "kept\n"
    assert group.table("cgroup.events")["frozen"] == 0


def test_what_a_session_uses_is_what_its_group_says(
    opened: Callable[..., Opened], quickstarted: Installed
) -> None:
    sandbox, group = opened()
    sandbox.execute("python3 -c 'b = bytearray(100 << 20); sum(range(10**6))'; head -c 20M /dev/zero >/tmp/f")
    at = f"/v1/sessions/{sandbox.session_id}/metrics"
    began, peak = group.table("cpu.stat")["usage_usec"] / 1e6, group.number("memory.peak")
    now = quickstarted.call("GET", at).json()["now"]
    later = group.table("cpu.stat")["usage_usec"] / 1e6
    assert began - MILLISECOND <= now["cpu_seconds"] <= later + MILLISECOND
    assert peak <= now["memory_peak"] <= group.number("memory.peak")
    used = group.number("memory.current") - group.table("memory.stat")["inactive_file"]
    assert abs(now["memory"] - used) < 4 * MIB
    assert now["processes"] == group.number("pids.current")

    def is_sampled() -> bool:
        samples = quickstarted.call("GET", at).json()["samples"]
        return any(
            one["cpu_seconds"] >= began - MILLISECOND and one["memory_peak"] >= peak for one in samples
        )

    eventually(is_sampled, 60)


def test_a_sandbox_has_no_network(opened: Callable[..., Opened]) -> None:
    sandbox, _ = opened()
    assert sandbox.execute("ls /sys/class/net").stdout == "lo\n"
    assert sandbox.execute("curl -sS -m 5 http://10.0.2.2").exit_code != 0


def test_nothing_is_left_and_the_figures_say_so(quickstarted: Installed) -> None:
    quickstarted.close_sessions()
    quickstarted.wait_without_leaks()
    text = quickstarted.call("GET", "/metrics", quickstarted.admin_key).text
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert {float(value) for name, value in figures.items() if name.startswith("sandbox_leaks")} == {0.0}
    assert (float(figures["sandbox_keeper_up"]), float(figures["sandbox_store_up"])) == (1, 1)
    assert float(figures["sandbox_storage_size_bytes"]) > 0


def test_the_doctor_finds_nothing_of_weight(quickstarted: Installed) -> None:
    told = quickstarted.ctl("doctor")
    assert told.startswith(("Grade A", "Grade B")), told


def test_uninstall_leaves_nothing(quickstarted: Installed) -> None:
    """The last of these: what is said of the server here is said of one that is gone."""
    open_in(quickstarted)
    machine = quickstarted.machine
    machine.run(f"cd {quickstarted.checkout} && ./quickstart.sh uninstall", seconds=600, show=True)
    assert machine.run(LEFT) == ""
