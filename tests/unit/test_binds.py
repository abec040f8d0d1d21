"""What the engine is told of a sandbox's mounts, as engines from 25 on take it."""

from __future__ import annotations

from pathlib import Path

from server.keeper.runtime import Spec
from server.keeper.runtime.binds import mounts_of

PLACE = Path("/state/sandboxes/1")
PATHS = (PLACE / "run", PLACE / "workspace", PLACE / "data", PLACE / "online", PLACE / "machine")
SPEC = Spec("1" * 32, "image", 10_000, 256 << 20, 1.0, *PATHS)


def test_only_binds_that_are_read_only_are_asked_to_be_so_for_themselves_alone() -> None:
    """The engine refuses a writable bind with this word, and then no sandbox starts at all."""
    asked = [mount for mount in mounts_of(SPEC, False) if mount["BindOptions"].get("ReadOnlyNonRecursive")]
    assert [mount["Target"] for mount in asked] == ["/data"]
    assert all(mount["ReadOnly"] for mount in asked)


def test_workspace_and_run_directory_can_be_written_and_nothing_else() -> None:
    writable = {mount["Target"] for mount in mounts_of(SPEC, False) if not mount["ReadOnly"]}
    assert writable == {"/run/sandbox", "/workspace"}
