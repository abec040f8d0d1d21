"""What an OCI runtime is goes by its program, not by the name that an operator gave it."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.keeper.runtime.facts import facts_of
from server.keeper.runtime.oci import identify


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("runsc version release-20240729.0", "runsc"),
        ("crun version 1.8.1", "crun"),
        ("runc version 1.1.5+ds1", "runc"),
        ("kata-runtime  : 3.0", ""),
    ],
)
def test_the_program_says_what_it_is(tmp_path: Path, said: str, kind: str) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho '{said}'\n")
    program.chmod(0o755)
    facts = facts_of({"Runtimes": {"any-name": {"path": str(program)}}})
    found = identify("any-name", facts)
    assert (found.kind, found.is_gvisor, found.version) == (kind, kind == "runsc", said.split()[-1])


@pytest.mark.parametrize(
    ("name", "about", "kind"),
    [
        ("safe", {"runtimeType": "io.containerd.runsc.v1"}, "runsc"),
        ("safe", {"path": "/nowhere/runsc"}, "runsc"),
        ("runsc-systrap", {"path": "/nowhere/wrapped"}, "runsc"),
        ("kata", {"runtimeType": "io.containerd.kata.v2"}, ""),
    ],
)
def test_one_that_cannot_be_asked_is_known_by_its_names(name: str, about: dict[str, str], kind: str) -> None:
    assert identify(name, facts_of({"Runtimes": {name: about}})).kind == kind
