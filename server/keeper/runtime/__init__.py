"""What starts and stops sandboxes. Cut to what opening and closing need; `docker.py` is the one we have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Spec:
    """A sandbox to be. Nothing of a tenant's is in it beyond what the engine must enforce."""

    id: str
    image: str
    uid: int
    memory: int
    cpus: float
    run_dir: Path
    workspace: Path | None  # None: a volume that lives and dies with the container
    cpus_online: Path  # what the C library takes the number of CPUs from


@dataclass(frozen=True)
class Seen:
    """A sandbox as the runtime sees it. `cause` says why it is dead, None while it lives."""

    id: str
    uid: int
    cause: str | None


class RuntimeFailed(Exception):
    """The runtime refused or did not answer. The message is for callers; `words` are for the log alone."""

    def __init__(self, message: str, words: str = "") -> None:
        super().__init__(message)
        self.words = words


class Runtime(Protocol):
    def create(self, spec: Spec) -> None:
        """Make and start it; idempotent on the id."""

    def inspect(self, sandbox: str) -> Seen | None: ...

    def wait_dead(self, sandbox: str, seconds: float) -> None:
        """Return when it has stopped or gone, at the latest after `seconds`."""

    def seen(self) -> Iterable[Seen]:
        """Every sandbox of this instance, dead ones too: the reconciler's truth."""

    def delete(self, sandbox: str) -> None:
        """Gone when this returns; idempotent."""

    def image_id(self, reference: str) -> str | None:
        """What a reference means now; None if there is no such image."""

    def check(self, images: Iterable[str]) -> dict[str, str]:
        """What is wrong, by what it is about; empty when all is well."""
