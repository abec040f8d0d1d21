"""A user in the docker group, without root: the same server, with a volume for a workspace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from expect import problem
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


def test_what_cannot_be_done_without_root_is_said(stack: Stack) -> None:
    """Workspaces are the engine's: no name, no snapshot, a soft limit; everything else of files works."""
    told = requests.get(f"{stack.url}/readyz", timeout=10).json()["storage"]
    assert "root" in told and "soft" in told
    problem(stack.call("POST", "/create_session", json={"workspace": "kept"}), 501, "storage_unsupported")
    with stack.client() as sandbox:
        sandbox.files.write("notes/today.txt", "written")
        assert sandbox.execute("cat notes/today.txt").stdout == "written"
        taken = stack.call("POST", f"/v1/sessions/{sandbox.session_id}/snapshots")
        problem(taken, 501, "storage_unsupported")
    assert stack.call("GET", "/v1/workspaces").json() == {"workspaces": [], "next_cursor": None}
    assert stack.call("GET", "/v1/snapshots").json() == {"snapshots": []}


def test_the_soft_limit_that_is_spoken_of_is_kept(stack: Stack) -> None:
    with stack.client(disk=16 << 20) as sandbox:
        result = sandbox.execute("while :; do head -c 1000000 /dev/zero >> big; sleep 0.01; done", timeout=60)
        assert result.disk_full and not result.timed_out
        assert sandbox.execute("rm big; echo room > small; cat small").stdout == "room\n"


def test_sessions_are_paused_but_never_cold(stack: Stack) -> None:
    """Their workspace lives and dies with the container."""
    with stack.client() as sandbox:
        sandbox.execute("cd /tmp; echo data > ~/file")
        at = f"/v1/sessions/{sandbox.session_id}"
        problem(stack.call("POST", f"{at}/pause", json={"cold": True}), 501, "storage_unsupported")
        assert stack.call("POST", f"{at}/pause", json={}).json()["state"] == "paused"
        assert sandbox.execute("cat ~/file; pwd").stdout == "data\n/tmp\n"


def test_closing_leaves_no_container_volume_or_directory(stack: Stack) -> None:
    before = set(docker("volume", "ls", "-q").split())
    with stack.client() as sandbox:
        sandbox.execute("mkdir -p deep/er; touch deep/er/file; chmod 0 deep")
        assert len(stack.containers()) == 1
    assert (stack.containers(), stack.directories()) == ([], [])
    assert set(docker("volume", "ls", "-q").split()) <= before
