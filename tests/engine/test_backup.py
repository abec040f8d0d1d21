"""A backup is worth what its restore gives: keys, tenants, tombstones, and workspaces with their files."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import requests
from expect import eventually
from sandbox_client import SandboxClient
from stack import Stack

_EXPORT = ("audit", "export", "--chain", "@instance")


def ctl(stack: Stack, *args: str) -> subprocess.CompletedProcess[str]:
    command = [stack.python, "-m", "server.ctl", *args]
    return subprocess.run(
        command, env=stack.env, cwd=stack.root, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def own() -> Stack:
    return Stack(SANDBOX_STORAGE_SIZE="1g")


def test_what_was_backed_up_is_there_after_the_disk_was_lost(own: Stack, tmp_path: Path) -> None:
    """The old key works, the workspace has its file, and a session of before is told to be over."""
    try:
        own.start()
        session = keep_something(own)
        assert ctl(own, "backup", str(tmp_path / "hot")).returncode == 0  # while it serves
        refused = ctl(own, "backup", str(tmp_path / "all"), "--volumes")
        assert refused.returncode == 1 and "unmount" in refused.stderr
        own.stop()
        own.ctl("close-all")
        own.ctl("unmount")
        own.ctl("backup", str(tmp_path / "all"), "--volumes")
        shutil.rmtree(own.dir / "state")
        own.ctl("restore", str(tmp_path / "all"))
        told = [json.loads(line)["action"] for line in own.ctl(*_EXPORT).splitlines()]
        acts = ["instance.backup", "instance.backup", "instance.close_all", "instance.unmount"]
        assert told[-5:] == [*acts, "instance.restore"], (
            "also the refused one; the last backup is in the next"
        )
        own.start()
        with own.client(workspace="precious") as sandbox:
            assert sandbox.execute("cat kept").output == "for good\n"
        answer = own.call("GET", f"/v1/sessions/{session}")
        assert (answer.status_code, answer.json()["cause"]) == (410, "lost")
        assert ctl(own, "audit", "verify").returncode == 0
        acts = own.call("GET", "/v1/audit").json()["records"]
        assert session in {act["session"] for act in acts}, "what was done before is on record"
    finally:
        own.remove()
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "hot").iterdir()} == {
        "store.db": 0o600,
        "audit.db": 0o600,
        "instance": 0o600,
    }


def keep_something(stack: Stack) -> str:
    with stack.client(workspace="precious") as sandbox:
        sandbox.execute("echo for good >kept")
    opened: str = stack.call("POST", "/v1/sessions", json={}).json()["session_id"]
    return opened


def test_without_the_volumes_keys_are_there_and_workspaces_begin_anew(own: Stack, tmp_path: Path) -> None:
    try:
        own.start()
        keep_something(own)
        own.ctl("backup", str(tmp_path / "hot"))
        own.stop()
        own.ctl("close-all")
        own.ctl("unmount")
        shutil.rmtree(own.dir / "state")
        own.ctl("restore", str(tmp_path / "hot"))
        own.start()
        # Each worker remembers for a moment what it was told.
        eventually(lambda: requests.get(f"{own.url}/readyz", timeout=30).json()["status"] == "ready")
        with SandboxClient(url=own.url, api_key=own.key) as sandbox:
            assert sandbox.execute("ls").output == ""
    finally:
        own.remove()


def test_nothing_is_overwritten(own: Stack, tmp_path: Path) -> None:
    try:
        own.ctl("backup", str(tmp_path / "one"))
        for words in (("backup", str(tmp_path / "one")), ("restore", str(tmp_path / "one"))):
            assert ctl(own, *words).returncode == 1
    finally:
        own.remove()
