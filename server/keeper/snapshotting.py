"""Snapshots of sessions, and going back to them. One at a time for each session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from server.keeper.furnishing import Furnishing
from server.keeper.runtime import Refused, Runtime
from server.keeper.sandboxes import Sandboxes
from server.keeper.sleeping import Sleeping
from server.keeper.storage import Storage
from server.keeper.turns import Turns
from server.keeper.vitals import Vitals
from server.store import Session
from server.volume_rows import VolumeRows


class Snapshotting:
    def __init__(
        self,
        rows: VolumeRows,
        runtime: Runtime,
        storage: Storage,
        furnishing: Furnishing,
        sandboxes: Sandboxes,
        vitals: Vitals,
        sleeping: Sleeping,
        turns: Turns,
        clock: Callable[[], float],
    ) -> None:
        self._rows = rows
        self._runtime = runtime
        self._storage = storage
        self._furnishing = furnishing
        self._sandboxes = sandboxes
        self._vitals = vitals
        self._sleeping = sleeping
        self._turns = turns
        self._clock = clock

    def take(self, session_id: str, snapshot: str) -> int | None:
        """The bytes that the workspace held, if that can be told."""
        with self._alone(session_id) as session:
            shell = self._vitals.describe(session)
            with self._at_rest(session):
                return self._furnishing.snapshot(session, snapshot, shell)

    def restore(self, session_id: str, snapshot: str) -> None:
        with self._alone(session_id) as session:
            if self._rows.snapshot(session.tenant, snapshot) is None:
                raise Refused("snapshot_not_found")
            with self._furnishing.copy_for(session, snapshot) as furniture:
                assert furniture.volume is not None
                volume = furniture.volume
                self._sandboxes.move(
                    session,
                    furniture,
                    lambda new: self._rows.move(session, new.id, new.address, volume, self._clock()),
                )

    @contextmanager
    def _alone(self, session_id: str) -> Iterator[Session]:
        """Its turn, and awake: its shell is asked, and it is in a sandbox."""
        with self._turns.taken(session_id):
            yield self._sleeping.awake(session_id)

    @contextmanager
    def _at_rest(self, session: Session) -> Iterator[None]:
        """Where a copy takes time, nothing may move in the meantime."""
        if not self._furnishing.is_soft:
            yield
            return
        assert session.sandbox is not None
        with self._sandboxes.holding(session.sandbox):
            self._storage.note_pause(session.sandbox)
            self._runtime.pause(session.sandbox)
            try:
                yield
            finally:
                self._runtime.resume(session.sandbox)
                self._storage.forget_pause(session.sandbox)
