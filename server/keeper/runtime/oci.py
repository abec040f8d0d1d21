"""What an OCI runtime is. Its name is the operator's choice; the program behind it knows better."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

from server.keeper.runtime.facts import EngineFacts

KINDS = ("runc", "crun", "runsc")
_COMMAND_SECONDS = 10


@dataclass(frozen=True)
class Oci:
    """`kind` is one of KINDS, or empty: something that we know nothing of."""

    name: str
    kind: str
    version: str

    @property
    def is_gvisor(self) -> bool:
        """A kernel of its own: what is mounted later does not appear inside, and inodes are its own."""
        return self.kind == "runsc"


def identify(name: str, facts: EngineFacts) -> Oci:
    """By what its program says; where there is none to be asked (a shim), by how that is called."""
    program = facts.runtimes.get(name) or name
    said = _said(program)
    kind = said[0] if said and said[0] in KINDS else _kind_in(program) or _kind_in(name)
    version = said[-1][:64] if said else ""
    return Oci(name, kind, facts.runc if kind == "runc" and program == "runc" and facts.runc else version)


def _kind_in(text: str) -> str:
    """Of `/usr/local/bin/runsc`, `io.containerd.runsc.v1` or `runsc-systrap`."""
    words = re.split(r"[^a-z0-9]+", text.rpartition("/")[2])
    return next((kind for kind in KINDS if kind in words), "")


def _said(program: str) -> list[str]:
    """The words of the first line: `crun version 1.8.1`."""
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_COMMAND_SECONDS
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return done.stdout.partition("\n")[0].split()
