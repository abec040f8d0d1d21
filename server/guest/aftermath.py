"""What a result tells besides the command's own words: its artifacts, and whether the disk is full."""

from __future__ import annotations

from .artifacts import Artifacts
from .as_user import as_user
from .control import Control
from .glance import Glance
from .ground import Ground
from .protocol import Head
from .refused import Refused
from .room import is_full
from .soft_limit import SoftLimit
from .work import Outcome

# What the kernel's refusals are called, by the C library and by Python.
_WORDS = (b"Disk quota exceeded", b"No space left on device", b"[Errno 122]", b"[Errno 28]")

_SOFT_WORDS = (b"File size limit exceeded", b"File too large", b"[Errno 27]")


class Aftermath:
    def __init__(self, ground: Ground, soft: SoftLimit | None) -> None:
        self._ground = ground
        self._soft = soft
        self._artifacts = Artifacts(ground.home)
        self._glance = Glance()

    def begin(self, control: Control) -> None:
        if self._soft is not None:
            self._soft.begin(control)

    def end(self, control: Control, outcome: Outcome | None) -> Head:
        """For every command that was begun with here. Without an outcome there is nothing to tell."""
        over = self._soft is not None and self._soft.end(control)
        identity = self._ground.processes.identity
        assert identity is not None, "bind comes first"
        ran = outcome is not None and control.begun
        words = _WORDS if self._soft is None else _WORDS + _SOFT_WORDS
        complained = ran and _complained(outcome)
        suspect = complained or (ran and _says(outcome, "stdout", words))
        if not suspect and not (ran and self._glance.sees(identity.uid, self._artifacts.path)):
            return {"artifacts": [], "artifacts_truncated": False, "disk_full": over}
        with as_user(identity.uid, identity.gid):
            found, truncated = self._artifacts.look(control.moment, control.over_at)
            full = over or (complained and _speaks_of(outcome, words))
            full = full or (suspect and is_full(self._ground.home))
        return {"artifacts": found, "artifacts_truncated": truncated, "disk_full": full}

    def room(self) -> int | None:
        """How many bytes may be written from outside. None where the host keeps the limit: it tells then."""
        if self._soft is None:
            return None
        if self._soft.refuses():
            raise Refused("disk_full")
        return self._soft.left()


def _complained(outcome: Outcome | None) -> bool:
    """A command that is content has not run out of anything, and pays nothing."""
    return outcome is not None and (outcome.exit_code != 0 or outcome.output.streams["stderr"].total > 0)


def _speaks_of(outcome: Outcome | None, words: tuple[bytes, ...]) -> bool:
    """A program that cleans up, or asked for much at once, leaves room behind: then its words tell."""
    if outcome is None:
        return False
    error = outcome.details.get("error")
    said = b"" if error is None else error["message"].encode("utf-8", "replace")
    return _says(outcome, "stderr", words) or any(one in said for one in words)


def _says(outcome: Outcome | None, stream: str, words: tuple[bytes, ...]) -> bool:
    """Of stdout that alone proves nothing: anybody may print these words."""
    if outcome is None:
        return False
    said = b"".join(outcome.output.streams[stream].parts())
    return any(one in said for one in words)
