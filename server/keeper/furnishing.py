"""What sessions have in their sandboxes, made and unmade: volumes with their shares, copies, datasets.

A volume that no row of the store names and that is not in our hands belongs to nobody.
"""

from __future__ import annotations

import errno
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from server.config import Config
from server.keeper.datasets import Datasets
from server.keeper.doctor.room import Stock
from server.keeper.runtime import Refused, RuntimeFailed
from server.keeper.storage import Furniture, Storage
from server.keeper.volumes import Share, Volumes
from server.quota_rows import QuotaRows
from server.store import Session
from server.volume_rows import VolumeRows

TRIAL_DISK = 32 << 20  # it is filled, which must not be to anybody's cost
_RESERVE = 0.1  # of the storage is left to those who have a place in it
_SLACK = 16 << 20
_NEARLY = 1 << 20  # so little is as good as nothing: it would be gone with the first file
# What was deleted is freed by the kernel in the background, which tells nobody: it is looked for again.
_PATIENCE = (0.1, 0.2, 0.4, 0.8, 0.0)

_log = logging.getLogger("sandbox.furnishing")


class Furnishing:
    def __init__(
        self,
        config: Config,
        rows: VolumeRows,
        quotas: QuotaRows,
        storage: Storage,
        volumes: Volumes | None,
        datasets: Datasets,
    ) -> None:
        self._config = config
        self._rows = rows
        self._quotas = quotas
        self._storage = storage
        self._volumes = volumes
        self._datasets = datasets
        self._lock = threading.Lock()
        self._in_hand: set[str] = set()

    @property
    def is_soft(self) -> bool:
        return self._volumes is None or not self._volumes.is_hard

    @property
    def mounts(self) -> bool:
        """Whether volumes are ours to mount; otherwise the engine gives each sandbox one."""
        return self._volumes is not None

    @property
    def furnishes_the_pool(self) -> bool:
        """Full quotas would have to be counted anew when a tenant takes a volume over."""
        return self._volumes is not None and self._volumes.quotas != "full"

    def for_pool(self) -> Furniture:
        """For a sandbox that waits for its session: an empty volume, in hand, for which nobody pays yet."""
        if self._volumes is None or not self.furnishes_the_pool:
            return Furniture()
        volume = secrets.token_hex(16)
        with self._lock:
            self._in_hand.add(volume)
        with _explained():
            self._volumes.create(volume, Share(None, 0, self._config.disk))
        return Furniture(volume)

    def let_go(self, volume: str | None) -> None:
        """From here on it is the session's whose row names it, or nobody's."""
        with self._lock:
            self._in_hand.discard(volume or "")

    def check(self, session: Session) -> None:
        """Raises if there is no room for another volume of the session's tenant."""
        if self._volumes is not None:
            self._check_room(session.tenant)
            self._within(self._share(session), lambda _: None)

    def give(self, session: Session, waiting: Furniture) -> Furniture:
        """What waits in a warm sandbox, for a session that wants it empty; made now if nothing does."""
        if self._volumes is None or waiting.volume is None:
            return self.for_session(session)
        with _explained():
            self._volumes.give(waiting.volume, self._share(session))
        return waiting

    def for_session(self, session: Session) -> Furniture:
        """What a session that is being opened gets. Asked again, the same."""
        if session.volume is None or self._volumes is None:
            if session.workspace is not None or session.source is not None or session.datasets:
                raise Refused("storage_unsupported")
            return Furniture()
        share = self._share(session)
        self._check_room(session.tenant)
        source, volume = session.source, session.volume
        if source is None:
            self._within(share, lambda volumes: volumes.create(volume, share))
        else:
            self._copy(source, volume, share, read_only=False)
        shell = self._storage.shell_of(source) if source else b""
        datasets = self._datasets.find(session.tenant, session.datasets, again=source is not None)
        return Furniture(volume, datasets, shell)

    def again(self, session: Session) -> Furniture | None:
        """What a session that has gone cold had; None if its files are gone."""
        if session.volume is None or self._volumes is None or not self._volumes.path(session.volume).exists():
            return None
        datasets = self._datasets.find(session.tenant, session.datasets, again=True)
        return Furniture(session.volume, datasets, self._storage.shell_of(session.volume))

    def outlives(self, session: Session) -> bool:
        """Whether the session's files are still there when its sandbox is not."""
        return self._volumes is not None and session.volume is not None

    def keep_shell(self, session: Session, shell: bytes) -> None:
        if session.volume is not None:
            self._storage.keep_shell(session.volume, shell)

    def settle_shell(self, session: Session) -> bool:
        """Whether it is kept for good: on a disk that is full there was no room for it."""
        return session.volume is not None and self._storage.settle_shell(session.volume)

    @contextmanager
    def copy_for(self, session: Session, source: str) -> Iterator[Furniture]:
        """A copy of `source` that the session may get; it is in hand during the block."""
        volume = secrets.token_hex(16)
        with self._lock:
            self._in_hand.add(volume)
        try:
            share = self._share(session)  # going back must be possible where nothing else is
            self._copy(
                source, volume, replace(share, tenant_limit=share.tenant_limit + _SLACK), read_only=False
            )
            datasets = self._datasets.find(session.tenant, session.datasets, again=True)
            yield Furniture(volume, datasets, self._storage.shell_of(source))
        finally:
            with self._lock:
                self._in_hand.discard(volume)
            self.drop(volume)

    def trial(self, volume: str) -> Furniture:
        """For a sandbox of nobody's: a small volume that no tenant pays for."""
        if self._volumes is None:
            return Furniture()
        with self._lock:
            self._in_hand.add(volume)
        with _explained():
            self._volumes.create(volume, Share(0, self._config.tenant_disk, TRIAL_DISK))
        return Furniture(volume)

    def end_trial(self, volume: str | None) -> None:
        """Also for what waited in vain for a session."""
        self.let_go(volume)
        self.drop(volume)

    def snapshot(self, session: Session, snapshot: str, shell: bytes) -> int | None:
        """How much the volume held then, if that can be told."""
        if self._volumes is None or session.volume is None:
            raise Refused("storage_unsupported")
        self._storage.keep_shell(session.volume, shell)  # also nothing: an earlier one is not of now
        self._check_room(session.tenant)
        self._copy(session.volume, snapshot, self._share(session), read_only=True)
        return self._volumes.used(session.volume)

    def used(self, volume: str) -> int | None:
        if self._volumes is None:
            return None
        with _explained():
            return self._volumes.used(volume)

    def used_by(self, tenant: str) -> int | None:
        if self._volumes is None:
            return None
        with _explained():
            return self._volumes.used_by(self._rows.tenant_number(tenant))

    def drop(self, volume: str | None) -> bool:
        """Remove a volume if nobody owns it."""
        if volume is None or self._volumes is None:
            return False
        with self._lock:
            if volume in self._in_hand:
                return False
        if self._rows.is_owned(volume):
            return False
        with _explained():
            self._volumes.delete(volume)
        self._rows.forget(volume)
        return True

    def drop_left(self, sandbox: str, volume: str | None) -> None:
        """What a sandbox that is gone had to itself: its volume, and its session's checkpoints."""
        for one in (volume, *self._rows.left_in(sandbox)):
            self._attempt(one)

    def drop_freed(self) -> None:
        """What sessions without a sandbox had: their checkpoints are nobody's once they have ended."""
        for one in self._rows.freed():
            self._attempt(one)

    def _attempt(self, volume: str | None) -> bool:
        """One that cannot be removed yet is the next sweep's, and keeps nothing else from going."""
        try:
            return self.drop(volume)
        except RuntimeFailed as exc:
            _log.warning("could not remove a volume yet", extra={"fields": {"words": exc.words}})
            return False

    def orphans(self) -> set[str]:
        """Volumes that nobody owns."""
        present = self._present()  # before the rows: those come first when one is made
        with self._lock:
            in_hand = set(self._in_hand)
        return present - self._rows.owned() - in_hand

    def drop_orphans(self) -> int:
        """Remove all volumes that nobody owns: how many there were."""
        return sum(self._attempt(volume) for volume in self.orphans())

    def sweep(self, now: float) -> int:
        """Volumes that nobody owns go, and rows of volumes that are gone. How many there were."""
        if self._volumes is None:
            return 0
        present = self._present()  # before the rows: those come first when one is made
        found = self.drop_orphans() + len(self._rows.drop_lost(present, now))
        with _explained():
            self._volumes.tidy()
        return found

    def _present(self) -> set[str]:
        with _explained():
            return set(self._volumes.list()) if self._volumes is not None else set()

    def _copy(self, source: str, volume: str, share: Share, read_only: bool) -> None:
        assert self._volumes is not None
        if not self._volumes.path(source).exists():
            raise Refused("snapshot_not_found")
        self._within(share, lambda volumes: volumes.copy(source, volume, share, read_only))

    def _within(self, share: Share, make: Callable[[Volumes], None]) -> None:
        """Make something if the tenant has room for it."""
        assert self._volumes is not None
        for wait in _PATIENCE:
            with _explained():
                used = self._volumes.used_by(share.tenant) or 0
                if used < share.tenant_limit - _NEARLY:
                    try:
                        return make(self._volumes)
                    except OSError as exc:
                        if exc.errno != errno.EDQUOT:
                            raise
                self._volumes.settle()
            time.sleep(wait)
        raise Refused("tenant_quota", used=used, allowed=share.tenant_limit)

    def _share(self, session: Session) -> Share:
        """No tenant alone may fill the storage."""
        tenant = self._rows.tenant_number(session.tenant)
        room = self.room()
        most = self._quotas.of(session.tenant).most("disk")
        return Share(
            tenant, most if room is None else min(most, room[0] // 2), session.disk or self._config.disk
        )

    def _check_room(self, tenant: str) -> None:
        """What is left is for those who are there already. Where too much is promised, those are refused who
        have more than an even share of it: nobody closes the storage to others by asking for much."""
        room = self.room()
        if room is None:
            return
        total, free = room
        promised, most = self._rows.promised(), total * self._config.disk_overcommit
        too_much = sum(promised.values()) > most and promised.get(tenant, 0) > most / max(1, len(promised))
        if free < total * _RESERVE or too_much:
            raise Refused("storage_full")

    def room(self) -> tuple[int, int] | None:
        """Bytes that all volumes may hold, and how many are free; None: not ours to say."""
        return self._volumes.room() if self._volumes is not None else None

    def stock(self, concern: str | None) -> Stock:
        """For the doctor."""
        if self._volumes is None:
            return Stock(False, "no", concern, None)
        return Stock(self._volumes.is_hard, self._volumes.quotas, concern, self._volumes.room())

    def concern(self) -> str | None:
        """What an operator should know, if it is nearly full."""
        room = self.room()
        if room is None or room[1] >= room[0] * _RESERVE:
            return None
        return f"the storage of workspaces is nearly full: {room[1] >> 20} of {room[0] >> 20} MiB are free"


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise RuntimeFailed("The storage of workspaces failed. The keeper's log says how.", str(exc)) from exc
