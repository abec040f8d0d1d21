"""Why a container is dead, read off the state that the engine tells."""

from __future__ import annotations

from typing import Any

import pytest

from server.keeper.runtime.docker import _cause


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ({"ExitCode": 75}, "engine_stopped"),
        ({"ExitCode": 255}, "engine_stopped"),  # it ended with the host, while no engine looked
        ({"ExitCode": 137, "OOMKilled": True}, "oom"),
        ({"ExitCode": 137}, "killed"),
        ({"ExitCode": 1}, "crashed"),
    ],
)
def test_the_exit_code_tells_the_cause(state: dict[str, Any], cause: str) -> None:
    assert _cause(state) == cause
