"""The OCI runtime that makes the containers: which one, which version, and which known repairs it lacks.

A distribution repairs without a new number; what Debian is known to have put in is a table here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from server.keeper.doctor import MAJOR, MINOR, NOTE, Finding, judged, unknown
from server.keeper.runtime.facts import EngineFacts
from server.keeper.runtime.oci import Oci

_ADVICE = (
    "apt-get upgrade, if that offers a newer one; otherwise Docker's own packages bring one that is repaired "
    "(docs.docker.com/engine/install), or name another in SANDBOX_OCI_RUNTIME"
)


@dataclass(frozen=True)
class Repair:
    """`since`: the first repaired version of each line; a line that is not named counts by the newest."""

    name: str
    since: tuple[tuple[int, int, int], ...]
    needs: str
    severity: str
    backports: tuple[str, ...] = ()


_IMAGES = (
    "needs a hostile image or mounts that race: images here are the operator's, mounts are nobody's choice"
)
REPAIRS = {
    "runc": (
        Repair(
            "CVE-2024-21626",
            ((1, 1, 12),),
            "a container could leave through a leaked descriptor",
            MAJOR,
            ("1.1.5+ds1-1+deb12u1",),
        ),
        Repair("CVE-2025-31133", ((1, 2, 8), (1, 3, 3), (1, 4, 0)), _IMAGES, MINOR),
        Repair("CVE-2025-52565", ((1, 2, 8), (1, 3, 3), (1, 4, 0)), _IMAGES, MINOR),
        Repair("CVE-2025-52881", ((1, 2, 8), (1, 3, 3), (1, 4, 0)), _IMAGES, MINOR),
    ),
    "crun": (Repair("CVE-2025-24965", ((1, 20, 0),), "needs krun, which is not used here", NOTE),),
    "runsc": (),
}


def examine(made_with: Oci, facts: EngineFacts, why: str) -> Iterator[Finding]:
    name = made_with.name
    if name not in facts.runtimes:
        yield Finding(
            "oci.runtime", MAJOR, f"{name}: the engine does not know it", ", ".join(facts.runtimes),
            "register it in /etc/docker/daemon.json, or change SANDBOX_OCI_RUNTIME",
        )  # fmt: skip
        return
    if why:
        yield Finding("oci.choice", "ok", f"{name}: {why}", "one that works here")
    yield from judge(made_with)


def judge(made_with: Oci) -> Iterator[Finding]:
    """By the version as the program or the engine tells it, with the distribution's suffix."""
    name, kind, version = made_with.name, made_with.kind, made_with.version
    yield judged(
        "oci.kernel",
        made_with.is_gvisor,
        NOTE,
        f"{name}: a kernel of its own"
        if made_with.is_gvisor
        else f"{name}: sandboxes share the host's kernel",
        "a kernel of its own, if tenants are hostile",
        "SANDBOX_OCI_RUNTIME=runsc, if your tenants would attack a kernel",
    )
    numbers = _numbers(version)
    if not kind or numbers is None:
        yield unknown("oci.version", f"{name} {version}".strip(), "look up its repairs yourself", NOTE)
        return
    lacking = [repair for repair in REPAIRS[kind] if not _has(repair, numbers, version)]
    severity = MINOR if any(repair.severity != NOTE for repair in lacking) else NOTE
    severity = MAJOR if any(repair.severity == MAJOR for repair in lacking) else severity
    named = "; ".join(
        f"lacks {', '.join(repair.name for repair in lacking if repair.needs == needs)} ({needs})"
        for needs in dict.fromkeys(repair.needs for repair in lacking)
    )
    yield judged(
        "oci.version", not lacking, severity, "; ".join([f"{name} {version}", *([named] if named else [])]),
        "no known hole", _ADVICE,
    )  # fmt: skip


def _has(repair: Repair, numbers: tuple[int, int, int], version: str) -> bool:
    if version in repair.backports:
        return True
    lines = {since[:2]: since for since in repair.since}
    return numbers >= lines.get(numbers[:2], max(repair.since))


def _numbers(version: str) -> tuple[int, int, int] | None:
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None
