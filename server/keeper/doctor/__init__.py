"""The doctor: is this installation as it should be, and what is to be done where it is not?

One module for each group of checks. Each looks, then judges; the judging takes plain facts, so that it can be
tried with those of other machines. No finding has a secret in it: they are shown over HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

OK, NOTE, MINOR, MAJOR, CRITICAL = "ok", "note", "minor", "major", "critical"
SEVERITIES = (OK, NOTE, MINOR, MAJOR, CRITICAL)


@dataclass(frozen=True)
class Finding:
    """`id` is stable; `advice` is empty where all is well."""

    id: str
    severity: str
    found: str
    wanted: str
    advice: str = ""

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


def judged(id: str, right: bool, severity: str, found: object, wanted: object, advice: str) -> Finding:
    """A finding of that severity, unless what was found is right."""
    return Finding(
        id, OK if right else severity, str(found)[:300], str(wanted)[:300], "" if right else advice
    )


def unknown(id: str, why: object, advice: str, severity: str = MINOR) -> Finding:
    """What could not be looked at."""
    return Finding(id, severity, f"could not be examined: {why}"[:300], "a look at it", advice)
