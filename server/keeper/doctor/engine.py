"""The engine: its version, what it does for sandboxes that outlive it, and what it can enforce."""

from __future__ import annotations

import re
from collections.abc import Iterator

from server.keeper.doctor import CRITICAL, MAJOR, MINOR, NOTE, Finding, judged
from server.keeper.runtime.facts import EngineFacts

_OLDEST = (20, 10)


def judge(facts: EngineFacts) -> Iterator[Finding]:
    yield judged(
        "engine.version",
        _numbers(facts.version) >= _OLDEST,
        MAJOR,
        facts.version,
        "20.10 or newer",
        "upgrade Docker Engine: older ones are neither tested nor repaired",
    )
    yield judged(
        "engine.live_restore",
        facts.live_restore,
        MINOR,
        "on" if facts.live_restore else "off: a restart of the engine ends every session",
        "on",
        'put "live-restore": true into /etc/docker/daemon.json, then: systemctl reload docker',
    )
    yield judged(
        "engine.cgroups",
        facts.cgroups == "2",
        NOTE,
        f"version {facts.cgroups}",
        "version 2",
        "limits hold with version 1 too; a newer distribution boots with version 2",
    )
    yield from _security(facts)


def _security(facts: EngineFacts) -> Iterator[Finding]:
    names = " ".join(facts.security)
    yield judged(
        "engine.seccomp",
        "name=seccomp" in names,
        CRITICAL,
        "there" if "name=seccomp" in names else "missing",
        "there",
        "use a kernel and an engine that are built with seccomp: without it sandboxes reach the whole kernel",
    )
    yield judged(
        "engine.apparmor",
        "name=apparmor" in names or "name=selinux" in names,
        NOTE,
        "on" if "name=apparmor" in names or "name=selinux" in names else "off",
        "AppArmor or SELinux on",
        "apt-get install apparmor, and boot with it: one more wall, which ours does not count on",
    )
    remapped = "name=userns" in names
    yield judged(
        "engine.userns_remap",
        not remapped,
        MAJOR,
        "on" if remapped else "off: each session has a uid of its own instead",
        "off",
        "remove userns-remap from /etc/docker/daemon.json: workspaces are mapped to each session's uid, "
        "and both together do not work",
    )
    rootless = "name=rootless" in names
    yield judged(
        "engine.rootless",
        not rootless,
        MAJOR,
        "rootless" if rootless else "runs as root",
        "runs as root",
        "use the system's engine: a rootless one does not enforce every limit",
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
