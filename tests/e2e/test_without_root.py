"""A user in the docker group, without root: the same server, with a volume for a workspace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from stack import Stack, docker

USER = 54321

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def stack(installed: Path) -> Iterator[Stack]:
    server = Stack(installed, user=USER, SANDBOX_WEB_USER="")
    try:
        server.start()
        yield server
    finally:
        server.remove()


def test_nothing_of_it_runs_as_root(stack: Stack) -> None:
    for process in stack.processes.values():
        assert Path(f"/proc/{process.pid}").stat().st_uid == USER


def test_a_session_works_and_keeps_its_state(stack: Stack) -> None:
    with stack.client() as sandbox:
        sandbox.execute("cd /tmp; x=kept; echo data > ~/file")
        result = sandbox.execute("whoami; echo $x $PWD; cat ~/file")
    assert result.stdout == "user\nkept /tmp\ndata\n"


def test_the_wall_is_the_same(stack: Stack) -> None:
    told = requests.get(f"{stack.url}/readyz", timeout=10).json()
    assert told["wall"] == {}


def test_closing_leaves_no_container_volume_or_directory(stack: Stack) -> None:
    before = set(docker("volume", "ls", "-q").split())
    with stack.client() as sandbox:
        sandbox.execute("mkdir -p deep/er; touch deep/er/file; chmod 0 deep")
        assert len(stack.containers()) == 1
    assert (stack.containers(), stack.directories()) == ([], [])
    assert set(docker("volume", "ls", "-q").split()) <= before
