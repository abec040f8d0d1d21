"""The table of tested hosts: written when asked, one line a lane."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hosts.record import BEGIN, END, HOSTS, PAGE, ROOT, Facts, observe, record, with_table

FACTS = Facts("Debian GNU/Linux 13 (trixie)", "6.12", "26.1.5", "v2", "runc 1.1.15", "yes")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / PAGE).parent.mkdir()
    (tmp_path / HOSTS).parent.mkdir(parents=True)
    (tmp_path / HOSTS).write_text("[]\n")
    (tmp_path / PAGE).write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    return tmp_path


def test_a_lane_that_runs_again_replaces_its_line(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECORD_HOSTS", "1")
    for lane in ("vm", "engine-28", "vm"):
        record(lane, FACTS, project)
    hosts = json.loads((project / HOSTS).read_text())
    assert [host["lane"] for host in hosts] == ["engine-28", "vm"]
    page = (project / PAGE).read_text()
    assert page.startswith("before\n") and page.endswith("\nafter\n")
    assert (
        page.count("| `vm` | Debian GNU/Linux 13 (trixie) | 6.12 | 26.1.5 | v2 | runc 1.1.15 | yes | 2") == 1
    )


def test_nothing_is_written_unless_asked(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECORD_HOSTS", raising=False)
    record("vm", FACTS, project)
    assert (project / HOSTS).read_text() == "[]\n"


def test_facts_are_the_lines_that_the_host_prints() -> None:
    printed = "\n".join(["Debian GNU/Linux 13 (trixie)", "6.12", "26.1.5", "v2", "runc 1.1.15", "yes", ""])
    assert observe(lambda script: printed) == FACTS


def test_the_page_shows_what_the_file_has() -> None:
    hosts = json.loads((ROOT / HOSTS).read_text())
    page = (ROOT / PAGE).read_text()
    assert {"vm", "engine of machine"} <= {host["lane"] for host in hosts}
    assert with_table(page, hosts) == page
