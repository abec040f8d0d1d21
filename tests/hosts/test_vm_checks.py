"""The checks of `./quickstart.sh test vm` stay loadable, with what they take from the documentation."""

from __future__ import annotations

import subprocess
import sys

from tests.hosts.record import ROOT


def test_the_checks_of_the_machine_can_be_collected() -> None:
    """They run for half an hour, so not here."""
    checks = [str(path) for path in sorted((ROOT / "tests/hosts/vm").glob("checks_*.py"))]
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider", *checks]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout
    assert "checks_reboot.py::test_the_server_comes_back_by_itself" in done.stdout
