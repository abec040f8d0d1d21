"""Snapshots of workspaces: taken, listed, gone back to, and made into sessions of their own.

A checkpoint is a snapshot that is taken before an execution, so that the execution can be undone. It must
never stand in an execution's way: one that could not be taken is remembered as missing, so that `undo` does
not go back further than it says.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from server import errors
from server.config import Config
from server.keeper_client import KeeperClient
from server.names import Idempotency
from server.sessions import Sessions, Wish
from server.store import Session
from server.volume_rows import Snapshot, VolumeRows
from server.workspace_errors import NothingToUndo, SnapshotNotFound

_AT_ONCE = 4
_TIGHT = 0.9  # of a session's disk space

_log = logging.getLogger("sandbox.snapshots")


@dataclass
class Checkpoint:
    """Around an execution: whether there is anything that it could undo."""

    is_needed: bool = True


class Snapshots:
    def __init__(
        self,
        config: Config,
        sessions: Sessions,
        rows: VolumeRows,
        keeper: KeeperClient,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._sessions = sessions
        self._rows = rows
        self._keeper = keeper
        self._clock = clock

    def take(
        self, tenant: str, session_id: str, name: str | None, idempotency: Idempotency | None
    ) -> tuple[Snapshot, bool]:
        """The snapshot, and whether it is new."""
        session = self._sessions.get(tenant, session_id)
        self._sessions.use(session)
        if idempotency is None:
            return self._take(self._draft(session, "snapshot", name=name)), True
        words = f"{session.id} {idempotency.key}".encode()
        wanted = replace(
            self._draft(session, "snapshot", name=name), id=hashlib.sha256(words).hexdigest()[:32]
        )
        known = self._rows.any_snapshot(wanted.id)
        if known is None:
            return self._take(wanted), True
        if known.name != name:
            raise errors.IdempotencyConflict
        if known.state != "ready":
            raise errors.ServerBusy("This snapshot is being taken already. Ask again shortly.")
        return known, False

    def list(self, tenant: str, session_id: str | None = None) -> list[Snapshot]:
        if session_id is not None:
            self._sessions.get(tenant, session_id)
        return self._rows.snapshots(tenant, session_id)

    def get(self, tenant: str, snapshot: str, session_id: str | None = None) -> Snapshot:
        """Of any session, or of that one alone."""
        if session_id is not None:
            self._sessions.get(tenant, session_id)
        found = self._rows.snapshot(tenant, snapshot)
        if found is None or session_id not in (None, found.session):
            raise SnapshotNotFound
        return found

    def delete(self, tenant: str, snapshot: str, session_id: str | None = None) -> None:
        self._remove([self.get(tenant, snapshot, session_id).id], tenant)

    def restore(self, tenant: str, session_id: str, snapshot: str) -> Session:
        """Everything that runs in the session ends; it goes on with the files and the shell of back then."""
        session = self._sessions.get(tenant, session_id)
        found = self.get(tenant, snapshot)
        if found.kind == "checkpoint" and found.session != session.id:
            raise SnapshotNotFound
        with self._ended_first(tenant, session_id):
            self._keeper.restore(session.id, found.id)
        self._sessions.forget_sandbox(session)
        return self._sessions.get(tenant, session_id)

    def undo(self, tenant: str, session_id: str, execution: str | None) -> tuple[Session, Snapshot]:
        """Back to before the last execution, or before that one; what came after it is undone with it."""
        session = self._sessions.get(tenant, session_id)
        kept = self._rows.checkpoints(session.id)
        wanted = [one for one in kept if execution in (None, one.execution)]
        if not wanted or wanted[-1].state != "ready":
            raise NothingToUndo
        target = wanted[-1]
        restored = self.restore(tenant, session_id, target.id)
        undone = [one.id for one in kept[kept.index(target) :]]
        self._remove(undone, tenant)
        return restored, target

    def fork(
        self, tenant: str, session_id: str, count: int, idempotency: Idempotency | None
    ) -> Sequence[Session]:
        """New sessions like this one, each with a copy of its files and of its shell, all of one moment."""
        session = self._sessions.get(tenant, session_id)
        self._sessions.use(session)
        step = self._take(self._draft(session, "fork"))
        wish = replace(_wish_like(session), source=step.id)
        opened: list[Session] = []

        def open_one(number: int) -> None:
            key = idempotency and Idempotency(f"{idempotency.key}/{number}", idempotency.fingerprint)
            opened.append(self._sessions.open(tenant, wish, key)[0])

        try:
            with ThreadPoolExecutor(min(count, _AT_ONCE)) as pool:
                for done in [pool.submit(open_one, number) for number in range(count)]:
                    done.result()
        except errors.SandboxError:
            for one in opened:
                if one.source == step.id:  # not those that an earlier call with this key has made
                    with contextlib.suppress(errors.SandboxError):
                        self._sessions.close(tenant, one.id)
            raise
        finally:
            self._remove([step.id], tenant)
        return opened

    @contextlib.contextmanager
    def checkpoint(self, session: Session, execution: str) -> Iterator[Checkpoint]:
        """Around the start of an execution, in a session that wants to be able to undo it; not taken twice.

        What was refused, or had run before, has none: undoing it would undo nothing.
        """
        if not session.checkpoint or self._rows.has_checkpoint(session.id, execution):
            yield Checkpoint()
            return
        draft, taken, used = self._draft(session, "checkpoint", execution=execution), Checkpoint(), 0
        try:
            used = self._take(draft, give_up=False).size or 0
        except errors.SandboxError as exc:
            _log.warning("no checkpoint: %s", exc, extra={"fields": {"session": session.id}})
        try:
            yield taken
        except errors.GuestUnavailable:
            raise  # it may have run
        except errors.SandboxError:
            taken.is_needed = False
            raise
        finally:
            self._settle_checkpoint(session, draft.id, taken.is_needed, used)

    def _settle_checkpoint(self, session: Session, checkpoint: str, is_needed: bool, used: int) -> None:
        """Older ones make way for it. Those are not worth a full disk: deleting files would make no room."""
        kept = 1 if used > _TIGHT * session.disk else self._config.checkpoints_max
        old = [one.id for one in self._rows.checkpoints(session.id)[:-kept]]
        self._remove(old if is_needed else [checkpoint], session.tenant)

    @contextlib.contextmanager
    def _ended_first(self, tenant: str, session_id: str) -> Iterator[None]:
        """If the session has ended meanwhile, that is the reason."""
        try:
            yield
        except errors.EngineUnavailable:
            self._sessions.get(tenant, session_id)
            raise

    def _draft(
        self, session: Session, kind: str, name: str | None = None, execution: str | None = None
    ) -> Snapshot:
        id_ = secrets.token_hex(16)
        return Snapshot(id_, session.tenant, session.id, name, kind, execution, "making", None, self._clock())

    def _take(self, draft: Snapshot, give_up: bool = True) -> Snapshot:
        self._rows.begin_snapshot(draft, self._config.snapshots_max)
        try:
            with self._ended_first(draft.tenant, draft.session):
                size = self._keeper.snapshot(draft.session, draft.id)
            if not self._rows.finish_snapshot(draft.id, size):
                raise errors.SessionNotFound
        except BaseException:
            if give_up:
                self._remove([draft.id], draft.tenant)
            raise
        return replace(draft, state="ready", size=size)

    def _remove(self, snapshots: Sequence[str], tenant: str) -> None:
        """Over for every caller. What the keeper cannot remove now, its sweep will."""
        for snapshot in snapshots:
            self._rows.remove_snapshot(tenant, snapshot)
            with contextlib.suppress(errors.Unavailable):
                self._keeper.drop(snapshot)


def _wish_like(session: Session) -> Wish:
    return Wish(
        user_id=None,
        image=session.image,
        memory=session.memory,
        cpus=session.cpus,
        lease=session.lease,
        env={},
        metadata=session.metadata,
        disk=session.disk,
        datasets=session.datasets,
        checkpoint=session.checkpoint,
    )
