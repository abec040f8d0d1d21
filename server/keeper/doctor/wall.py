"""The wall, from inside: what a throw-away sandbox finds, and what becomes of one that takes too much."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from server.keeper.doctor import CRITICAL, Finding, judged

_ADVICE = (
    "the engine accepts this option and does not enforce it: use a kernel with cgroups, an engine that is "
    "not rootless, and runc, crun or runsc; docs/security.md says what each line is for"
)


def judge(group: str, wanted: Mapping[str, object], found: Mapping[str, object]) -> Iterator[Finding]:
    for name, value in wanted.items():
        seen = found.get(name)
        yield judged(f"{group}.{slug(name)}", seen == value, CRITICAL, f"{name}: {seen}", value, _ADVICE)


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
