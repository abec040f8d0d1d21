"""Volumes as plain directories, without btrfs: copies are real ones, limits are the guest's to watch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from server.keeper.names import identifier, is_identifier
from server.keeper.runtime import RuntimeFailed
from server.keeper.volumes import Share, is_complete, make_files
from server.volume_rows import COPY_SECONDS

_DRAFT = ".draft"
_REMOVE_SECONDS = 120
_LONGEST = 1 << 9  # of what a program says when it fails


class DirectoryVolumes:
    kind = "directory"
    is_hard = False
    quotas = "none"

    def __init__(self, root: Path) -> None:
        self._root = root
        self._drafts: set[str] = set()

    def create(self, volume: str, share: Share) -> None:
        self.path(volume).mkdir(mode=0o700, exist_ok=True)
        if not is_complete(self.path(volume)):
            make_files(self.path(volume))

    def give(self, volume: str, share: Share) -> None:
        """Nobody counts here."""

    def copy(self, source: str, volume: str, share: Share, read_only: bool) -> None:
        """Nothing moves in the source meanwhile: its sandbox is paused. Complete once it has its name."""
        if self.path(volume).exists():
            return
        draft = self._draft(volume)
        self._drafts.add(draft.name)
        try:
            remove_tree(draft)
            command = ["cp", "-a", "--reflink=auto", "--", str(self.path(source)), str(draft)]
            _run(command, COPY_SECONDS, "The workspace could not be copied.")
            os.rename(draft, self.path(volume))
        finally:
            self._drafts.discard(draft.name)

    def delete(self, volume: str) -> None:
        stem = volume.removesuffix(_DRAFT)
        remove_tree(self.path(volume) if stem == volume else self._draft(stem))

    def list(self) -> Iterable[str]:
        """Drafts, too, that nobody is at work on: they are nobody's."""
        found = [entry.name for entry in os.scandir(self._root) if entry.is_dir(follow_symlinks=False)]
        ours = [name for name in found if is_identifier(name.removesuffix(_DRAFT))]
        return [name for name in ours if name not in self._drafts]

    def used(self, volume: str) -> int | None:
        return None

    def used_by(self, tenant: int | None) -> int | None:
        return None

    def room(self) -> tuple[int, int] | None:
        return None

    def settle(self) -> None:
        pass

    def tidy(self) -> None:
        pass

    def path(self, volume: str) -> Path:
        return self._root / identifier(volume)

    def _draft(self, volume: str) -> Path:
        return self.path(volume).with_suffix(_DRAFT)


def remove_tree(path: Path) -> None:
    """The tree is hostile (depth, names, links); its sandbox is dead by now, so nothing moves in it.

    `rm` neither recurses on a stack of ours nor follows links nor leaves the filesystem.
    """
    if path.exists():
        command = ["rm", "-rf", "--one-file-system", "--", str(path)]
        _run(command, _REMOVE_SECONDS, "The sandbox's files could not be removed yet.")


def _run(command: list[str], seconds: float, failure: str) -> None:
    try:
        subprocess.run(command, check=True, timeout=seconds, capture_output=True)
    except subprocess.CalledProcessError as exc:
        raise RuntimeFailed(failure, exc.stderr.decode("utf-8", "replace")[:_LONGEST]) from exc
    except subprocess.SubprocessError as exc:
        raise RuntimeFailed(failure, str(exc)) from exc
