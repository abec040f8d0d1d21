"""The self-check, where what runs in the sandbox does not come to an end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from server import config as configuration
from server.keeper.selfcheck import PROBE_SECONDS, SelfCheck


class Sandboxes:
    """Any sandbox will do."""

    @contextlib.contextmanager
    def trial(self, wanted: Any) -> Iterator[str]:
        yield "a sandbox"


class SlowGuests:
    """No program ends in time, and none has printed anything."""

    def run(self, *what: Any) -> Any:
        return SimpleNamespace(timed_out=True, stdout=SimpleNamespace(first=b""))


def test_a_probe_that_takes_too_long_is_told_as_that(tmp_path: Any) -> None:
    config = configuration.load({"SANDBOX_STATE_DIR": str(tmp_path)})
    runtime: Any = SimpleNamespace(oci=lambda: SimpleNamespace(is_gvisor=False))
    sandboxes: Any = Sandboxes()
    guests: Any = SlowGuests()
    check = SelfCheck(config, runtime, sandboxes, guests, soft_disk=False)
    slow = f"could not run: what runs in the sandbox took longer than {PROBE_SECONDS:g} s: a slow host"
    assert check.strain() == slow
    assert check.look_again() == slow
