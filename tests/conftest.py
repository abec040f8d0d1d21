"""One server for all tests that need no settings of their own, and a sandbox for each test that wants one.

No engine fails these tests; it does not skip them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_client import SandboxClient
from stack import ROOT, Stack, running


def pytest_configure() -> None:
    """A run in the background ignores some signals, and so would every program that a test starts."""
    for number, action in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, action)


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    with running() as server:
        yield server


@pytest.fixture
def sandbox(stack: Stack) -> Iterator[SandboxClient]:
    with stack.client() as client:
        yield client


@pytest.fixture(scope="session")
def installed() -> Iterator[Path]:
    """The project and its packages where everybody may read them, as in /opt: a checkout may be anywhere."""
    with tempfile.TemporaryDirectory(prefix="sbx-opt-", dir="/var/tmp") as place:
        os.chmod(place, 0o755)
        for name in ("server", "deploy"):
            shutil.copytree(ROOT / name, Path(place, name))
        for packages in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
            shutil.copytree(packages, place, dirs_exist_ok=True)
        subprocess.run(["chmod", "-R", "a+rX", place], check=True, timeout=60)
        yield Path(place)
