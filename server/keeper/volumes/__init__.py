"""Volumes: where workspaces and snapshots live on this host, each with a limit.

A volume holds the directory `files`, which a sandbox sees as /workspace, and the file `shell`: what its main
shell was like when a snapshot was taken. A sandbox never sees the latter, nor anything else of the volume.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

FILES = "files"
OWNER = 1000  # of every file on disk, whatever uid the session has


@dataclass(frozen=True)
class Share:
    """Who pays for a volume: the tenant's number, what all volumes of it may hold, and what this one may.

    Nobody pays for one that waits for its session.
    """

    tenant: int | None
    tenant_limit: int
    limit: int


class Volumes(Protocol):
    kind: str
    is_hard: bool  # whether the limits are the filesystem's own
    quotas: str  # simple, full, or none

    def create(self, volume: str, share: Share) -> None:
        """An empty one; idempotent."""

    def give(self, volume: str, share: Share) -> None:
        """Nobody paid for it yet; from now on this is who does."""

    def copy(self, source: str, volume: str, share: Share, read_only: bool) -> None:
        """One with the same content; idempotent."""

    def delete(self, volume: str) -> None:
        """Idempotent."""

    def list(self) -> Iterable[str]: ...

    def used(self, volume: str) -> int | None:
        """Bytes that it accounts for, if that can be told."""

    def used_by(self, tenant: int | None) -> int | None: ...

    def room(self) -> tuple[int, int] | None:
        """Bytes that all volumes together may hold, and how many of them are free; None: not ours to say."""

    def settle(self) -> None:
        """See to it that what was deleted is accounted for."""

    def tidy(self) -> None:
        """Forget what is only kept for the sake of volumes that are gone."""

    def path(self, volume: str) -> Path: ...


def make_files(volume: Path) -> None:
    """Last comes the mode: without it a crash has left a volume that nobody may enter."""
    files = volume / FILES
    files.mkdir(mode=0o700, exist_ok=True)
    os.chown(files, OWNER, OWNER)


def is_complete(volume: Path) -> bool:
    return (volume / FILES).is_dir() and (volume / FILES).stat().st_uid == OWNER
