"""Volumes as btrfs subvolumes: limits that hold, copies that cost nothing.

Limits stand on groups, not on subvolumes: 1/volume for one volume and whatever is made inside it, 2/tenant
for everything of a tenant's, so that a chain of copies cannot hold more than the tenant may.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from server.keeper.names import identifier, is_identifier
from server.keeper.volumes import Share, btrfs, is_complete, make_files

_NUMBER = 12  # hex digits of a volume's id that make its group's number: 48 bits


class BtrfsVolumes:
    kind = "btrfs"
    is_hard = True

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._being_made = 0
        with btrfs.opened(root) as fd:
            self.quotas = btrfs.enable_quotas(fd)
            self.id = btrfs.filesystem_id(fd)

    def create(self, volume: str, share: Share) -> None:
        with btrfs.opened(self._root) as root, self._in_the_making():
            group = self._group(root, volume, share)
            _unless_there(lambda: btrfs.create(root, volume, group))
        if not is_complete(self.path(volume)):
            make_files(self.path(volume))

    def give(self, volume: str, share: Share) -> None:
        with btrfs.opened(self._root) as root:
            self._group(root, volume, share)

    def copy(self, source: str, volume: str, share: Share, read_only: bool) -> None:
        with (
            btrfs.opened(self._root) as root,
            btrfs.opened(self.path(source)) as from_,
            self._in_the_making(),
        ):
            group = self._group(root, volume, share)
            _unless_there(lambda: btrfs.snapshot(from_, root, volume, group, read_only))

    def delete(self, volume: str) -> None:
        with btrfs.opened(self._root) as root, contextlib.suppress(FileNotFoundError):
            btrfs.destroy(root, identifier(volume))

    def list(self) -> Iterable[str]:
        found = [entry.name for entry in os.scandir(self._root) if entry.is_dir(follow_symlinks=False)]
        return [name for name in found if is_identifier(name)]

    def used(self, volume: str) -> int | None:
        return btrfs.used(self.id, _group_of(volume))

    def used_by(self, tenant: int | None) -> int | None:
        return None if tenant is None else btrfs.used(self.id, btrfs.group(2, tenant))

    def room(self) -> tuple[int, int] | None:
        told = os.statvfs(self._root)
        return told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize

    def settle(self) -> None:
        with btrfs.opened(self._root) as root:
            btrfs.settle(root)

    def tidy(self) -> None:
        """A group outlives its volume as long as copies hold blocks that were written there.

        It stands before its volume does, too. So groups are looked at first, and while none is being made:
        each of them has its volume by now, or had it. The next sweep does what this one could not.
        """
        with btrfs.opened(self._root) as root:
            with self._lock:
                found = {} if self._being_made else btrfs.groups(root)
            live = btrfs.subvolumes(root)
            kept = {_group_of(volume) for volume in self.list()}
            for group, used in found.items():
                level, number = group >> 48, group & (1 << 48) - 1
                gone = number not in live if level == 0 else level == 1 and group not in kept
                if gone and not used:
                    btrfs.remove_group(root, group)

    def path(self, volume: str) -> Path:
        return self._root / identifier(volume)

    @contextlib.contextmanager
    def _in_the_making(self) -> Iterator[None]:
        """A volume and its group."""
        with self._lock:
            self._being_made += 1
        try:
            yield
        finally:
            with self._lock:
                self._being_made -= 1

    def _group(self, root: int, volume: str, share: Share) -> int:
        group = _group_of(volume)
        btrfs.create_group(root, group)
        btrfs.limit(root, group, share.limit)
        if share.tenant is not None:
            tenant = btrfs.group(2, share.tenant)
            btrfs.create_group(root, tenant)
            btrfs.limit(root, tenant, share.tenant_limit)
            btrfs.put_into(root, group, tenant)
        return group


def _group_of(volume: str) -> int:
    return btrfs.group(1, int(identifier(volume)[:_NUMBER], 16))


def _unless_there(make: Callable[[], None]) -> None:
    with contextlib.suppress(FileExistsError):
        make()
