"""What hostile code meets when it turns to the kernel: one probe in a sandbox, one test for each attack.

The ids are those of the attack catalogue; probes/kernel_surface.py says what each part tries.
"""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sandbox_client import SandboxClient

PROBE = Path(__file__).parent / "probes" / "kernel_surface.py"
NOT_THERE = {"EACCES", "ENOENT", "EPERM", "EROFS"}
UNREACHABLE = {"EADDRNOTAVAIL", "ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH"}
STANDARD_DEVICES = "console core fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero"


@pytest.fixture(scope="module")
def probed() -> dict[str, Any]:
    """Filled by the first test that asks: the probe runs once, whatever the scope of the sandbox is."""
    return {}


@pytest.fixture
def surface(sandbox: SandboxClient, probed: dict[str, Any]) -> dict[str, Any]:
    if not probed:
        result = sandbox.execute(["python3", "-"], stdin=PROBE.read_text(encoding="utf-8"), timeout=60)
        assert result.exit_code == 0, result.stderr
        probed.update(json.loads(result.stdout))
    return probed


def others(answers: dict[str, str], *expected: str) -> dict[str, str]:
    """The answers that are none of the expected ones: an empty dict when all is well."""
    return {name: answer for name, answer in answers.items() if answer not in expected}


def test_a25_requests_that_escape_a_quota_or_type_into_a_terminal_are_refused(
    surface: dict[str, Any],
) -> None:
    assert others(surface["A25"], "EPERM") == {}


def test_a70_dangerous_system_calls_are_refused(surface: dict[str, Any]) -> None:
    assert others(surface["A70"], "EPERM", "no such call") == {}


def test_a71_no_namespace_can_be_made_or_joined_and_nothing_mounted(surface: dict[str, Any]) -> None:
    """clone3 answers ENOSYS, so that libc falls back to clone, whose flags the filter can see."""
    clone3 = {name: answer for name, answer in surface["A71"].items() if name.startswith("clone3")}
    rest = {name: answer for name, answer in surface["A71"].items() if name not in clone3}
    assert others(clone3, "ENOSYS") == {}
    assert others(rest, "EPERM") == {}


def test_a72_a_32_bit_or_x32_call_kills_its_process(surface: dict[str, Any]) -> None:
    """A kernel without 32-bit support ends an int 0x80 by itself, with SIGSEGV."""
    answers = dict(surface["A72"])
    if not answers:
        pytest.skip("x86-64 only")
    assert answers.pop("int 0x80") in {"SIGSYS", "SIGSEGV"}
    assert others(answers, "SIGSYS") == {}


def test_a73_only_local_and_internet_sockets_and_route_queries_exist(surface: dict[str, Any]) -> None:
    assert others(surface["A73"]["refused"], "EPERM") == {}
    assert all(answer.startswith("allowed") for answer in surface["A73"]["allowed"].values())


def test_a74_nothing_gives_privileges(surface: dict[str, Any]) -> None:
    found = surface["A74"]
    assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")
    assert {int(found[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert found["uid"] != 0
    assert found["own setuid shell"] in {str(found["uid"]), "refused"}
    assert (found["su"], found["file capability"]) == ("refused", "EPERM")
    assert (found["setuid"], found["setgroups"]) == ("EPERM", "EPERM")
    assert found["setuid files"] == []


def test_a75_no_control_file_of_the_kernel_can_be_written(surface: dict[str, Any]) -> None:
    assert others(surface["A75"]["open for writing"], *NOT_THERE) == {}
    assert surface["A75"]["writable"] == []


def test_a76_devices_can_neither_be_made_nor_opened(surface: dict[str, Any]) -> None:
    assert others(surface["A76"]["refused"], *NOT_THERE) == {}
    assert surface["A76"]["mkfifo"] == "allowed (None)"
    assert set(surface["A76"]["listing"]) <= set(STANDARD_DEVICES.split())


def test_a77_clocks_and_names_cannot_be_set(surface: dict[str, Any]) -> None:
    assert others(surface["A77"], "EPERM") == {}


def test_a78_nothing_beyond_the_sandbox_can_be_reached(surface: dict[str, Any]) -> None:
    assert others(surface["A78"]["connect"], *UNREACHABLE) == {}
    assert not any(answer.startswith("allowed") for answer in surface["A78"]["resolve"].values())
    assert surface["A78"]["interfaces"] == ["lo"]


def test_a80_facts_about_the_host_are_hidden(surface: dict[str, Any]) -> None:
    assert others(surface["A80"], "", *NOT_THERE) == {}


def test_a81_a_sandbox_knows_neither_keys_nor_names_nor_paths_of_the_server(surface: dict[str, Any]) -> None:
    found, files = surface["A81"], surface["A81"]["files"]
    assert [name for name in found["environment"] if name.startswith(("DOCKER_", "SANDBOX_"))] == []
    assert re.search("e2b_[0-9a-f]{8}|docker.sock", json.dumps(found)) is None
    assert {line.split(":", 2)[2] for line in files["/proc/self/cgroup"].splitlines()} == {"/"}
    assert found["hostname"] == files["/etc/hostname"].strip() == "sandbox"
    assert socket.gethostname() not in {*files["/etc/hosts"].split(), *files["/etc/resolv.conf"].split()} - {
        "sandbox"
    }
    # A workspace that is a plain directory shows its path on the host here. It will not with the workspace
    # store, and this line becomes: the state directory is not in mountinfo.
    assert "docker.sock" not in files["/proc/self/mountinfo"]


def test_a81_the_resolvers_of_the_host_stay_unknown(surface: dict[str, Any]) -> None:
    servers = re.findall(r"(?m)^nameserver\s+(\S+)", surface["A81"]["files"]["/etc/resolv.conf"])
    assert [address for address in servers if not address.startswith("127.") and address != "::1"] == []
