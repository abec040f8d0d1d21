"""What several runs of pytest came to together, from their reports: the last word on each test counts."""

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree


def outcome_of(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    return "passed" if case.find("skipped") is None else "skipped"


def main() -> None:
    outcomes: dict[tuple[str, str], str] = {}
    for report in map(Path, sys.argv[1:]):
        if report.exists():
            for case in ElementTree.parse(report).iter("testcase"):
                outcomes[case.get("classname", ""), case.get("name", "")] = outcome_of(case)
    found = Counter(outcomes.values())
    skipped = f", {found['skipped']} skipped" if found["skipped"] else ""
    print(f"{found['passed']} passed, {found['failed']} failed{skipped}")


if __name__ == "__main__":
    main()
