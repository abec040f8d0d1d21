"""What starts and stops sandboxes. Cut to what opening and closing need; `docker.py` is the one we have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from server.keeper.runtime.facts import EngineFacts
from server.keeper.runtime.oci import Oci


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
    data: Path | None
    cpus_online: Path  # what the C library takes the number of CPUs from
    machine: Path  # files that stand in the place of those of the same name below /proc


@dataclass(frozen=True)
class Seen:
    """A sandbox as the runtime sees it. `cause` says why it is dead, None while it lives."""

    id: str
    uid: int
    cause: str | None
    paused: bool = False


@dataclass(frozen=True)
class Usage:
    """What a sandbox has used and has now, with all that is in it, the guest too. None: it cannot be told."""

    cpu_seconds: float
    memory: int  # without files' pages that the kernel could drop at once
    memory_peak: int | None
    processes: int | None


@dataclass(frozen=True)
class Problem:
    """A fault: `detail` is for everybody, the engine's own `words` for the operator alone."""

    detail: str
    words: str = ""

    @property
    def whole(self) -> str:
        return f"{self.detail} ({self.words})" if self.words else self.detail


class RuntimeFailed(Exception):
    """The runtime refused or did not answer. The message is for callers, `words` for the operator."""

    def __init__(self, message: str, words: str = "") -> None:
        super().__init__(message)
        self.words = words

    @property
    def problem(self) -> Problem:
        return Problem(str(self), self.words)


class Unreached(RuntimeFailed):
    """It was not there to be asked: nothing has been done."""


class Refused(RuntimeFailed):
    """Not for want of an engine: `code` says why, in a word that the web side knows, `facts` the rest."""

    def __init__(self, code: str, **facts: object) -> None:
        super().__init__(code)
        self.code = code
        self.facts = facts


class Runtime(Protocol):
    def create(self, spec: Spec) -> None:
        """Make and start it; idempotent on the id."""

    def inspect(self, sandbox: str) -> Seen | None: ...

    def wait_dead(self, sandbox: str, seconds: float) -> None:
        """Return when it has stopped or gone, at the latest after `seconds`."""

    def seen(self) -> Iterable[Seen]:
        """Every sandbox of this instance, dead ones too: the reconciler's truth."""

    def pause(self, sandbox: str) -> None:
        """Nothing in it moves until it is resumed; idempotent, like `resume`."""

    def resume(self, sandbox: str) -> None: ...

    def usage(self, sandbox: str) -> Usage | None:
        """Asked often: a runtime answers from what it knows, without a call to the engine each time."""

    def delete(self, sandbox: str) -> None:
        """Gone when this returns; idempotent."""

    def image_id(self, reference: str) -> str | None:
        """What a reference means now; None if there is no such image."""

    def faltered(self) -> bool:
        """Whether anything has failed since this was last asked: what was being done then is in doubt."""

    def facts(self) -> EngineFacts:
        """What the engine tells of itself."""

    def oci(self) -> Oci:
        """What sandboxes are made with."""

    def make_with(self, oci_runtime: str) -> None:
        """From now on, by a name that the engine knows; empty: its default."""

    def cpus(self) -> int:
        """How many there are where sandboxes run."""

    def check(self, images: Iterable[str]) -> dict[str, Problem]:
        """What is wrong, by what it is about; empty when all is well."""
