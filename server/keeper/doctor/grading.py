"""A grade for the whole: the worst that was found decides, and two of the serious kind are worse than one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from server.keeper.doctor import CRITICAL, MAJOR, MINOR, OK, SEVERITIES, Finding

# Exit codes of `sandboxctl doctor`; 1 and 2 are those of every command.
EXIT_CODES = {"A": 0, "B": 0, "C": 3, "D": 4, "F": 5}

MEANINGS = {
    "A": "as it should be",
    "B": "good; small things could be better",
    "C": "one thing needs care",
    "D": "several things need care",
    "F": "not safe, or not working: do not serve with it",
}


def grade(findings: Iterable[Finding]) -> str:
    severities = [finding.severity for finding in findings]
    if CRITICAL in severities:
        return "F"
    if majors := severities.count(MAJOR):
        return "C" if majors == 1 else "D"
    return "B" if MINOR in severities else "A"


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: (-SEVERITIES.index(finding.severity), finding.id))


def report(findings: Iterable[Finding]) -> dict[str, Any]:
    ordered = worst_first(findings)
    told = grade(ordered)
    return {"grade": told, "meaning": MEANINGS[told], "findings": [finding.as_json() for finding in ordered]}


def finding_of(told: dict[str, Any]) -> Finding:
    """A finding that another process tells."""
    fields = {name: str(told[name]) for name in ("id", "severity", "found", "wanted", "advice")}
    if fields["severity"] not in SEVERITIES:
        raise ValueError("severity")
    return Finding(**fields)


def as_text(report: dict[str, Any]) -> str:
    """For a person: what is to be done first, then what is well."""
    lines = [f"Grade {report['grade']}: {report['meaning']}", ""]
    for finding in report["findings"]:
        if finding["severity"] == OK:
            continue
        lines.append(f"{finding['severity'].upper():9}{finding['id']}: {finding['found']}")
        lines.append(f"{'':9}should be: {finding['wanted']}")
        lines += [f"{'':9}do: {finding['advice']}"] if finding["advice"] else []
    well = [finding for finding in report["findings"] if finding["severity"] == OK]
    lines += [f"{'ok':9}{finding['id']}: {finding['found']}" for finding in well]
    return "\n".join(lines)
