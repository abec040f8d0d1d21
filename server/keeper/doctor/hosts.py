"""The hosts that the tests ran on, as the lanes of tests/hosts have written them down; and this one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from server.keeper.doctor import NOTE, Finding, judged
from server.keeper.runtime.facts import EngineFacts
from server.keeper.runtime.oci import Oci

_TESTED = Path(__file__).parent / "tested_hosts.json"
_ADVICE = "run ./quickstart.sh test on a machine like this one; docs/operations.md lists the tested hosts"


def tested() -> list[dict[str, str]]:
    hosts: list[dict[str, str]] = json.loads(_TESTED.read_text())
    return hosts


def judge(facts: EngineFacts, made_with: Oci, hosts: Sequence[Mapping[str, str]]) -> Iterator[Finding]:
    """By distribution, the engine's major version, version of cgroups, and OCI runtime."""
    kind = made_with.kind or made_with.name
    here = (facts.system, _major(facts.version), f"v{facts.cgroups}", kind)
    known = [
        (host["distribution"], _major(host["engine"]), host["cgroup"], host["oci_runtime"].split()[0])
        for host in hosts
    ]
    yield judged(
        "host.tested",
        here in known,
        NOTE,
        f"{facts.system}, Docker Engine {facts.version}, cgroup v{facts.cgroups}, {kind}",
        "; ".join(sorted(f"{name}, {engine}, cgroup {cgroup}, {oci}" for name, engine, cgroup, oci in known)),
        _ADVICE,
    )


def _major(version: str) -> str:
    return version.partition(".")[0]
