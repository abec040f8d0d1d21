"""Workspaces and snapshots as the store knows them, and whose a volume is.

A volume that no row names belongs to nobody: the keeper removes it. So rows come before volumes and go before
them, and a crash in between leaves nothing behind.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass

from server.errors import ServerBusy
from server.store import Session, Store
from server.workspace_errors import TooManySnapshots, WorkspaceInUse, WorkspaceNotFound

_LIVE = "SELECT id, visit FROM sessions WHERE tenant = ? AND workspace = ? AND state != 'ended'"
_WORKSPACE = """SELECT w.name, w.volume, w.created_at, w.last_used_at, s.id AS session FROM workspaces AS w
                LEFT JOIN sessions AS s ON s.tenant = w.tenant AND s.workspace = w.name
                                       AND s.state != 'ended' AND NOT s.visit"""
# As long as a copy of a workspace may take where it is a real one, and how long a snapshot has before it is
# given up: whoever takes it may have waited for its turn, and paused the sandbox.
COPY_SECONDS = 600.0
MAKING_SECONDS = COPY_SECONDS + 300.0


@dataclass(frozen=True)
class Workspace:
    name: str
    volume: str
    created_at: float
    last_used_at: float | None
    session: str | None


@dataclass(frozen=True)
class Snapshot:
    """`execution` is the one before which a checkpoint was taken. Its volume has its id."""

    id: str
    tenant: str
    session: str
    name: str | None
    kind: str
    execution: str | None
    state: str
    size: int | None
    created_at: float


class VolumeRows:
    def __init__(self, store: Store) -> None:
        self._store = store

    # Workspaces.

    def workspaces(self, tenant: str, after: str, limit: int) -> list[Workspace]:
        """By name, after that one."""
        sql = f"{_WORKSPACE} WHERE w.tenant = ? AND w.name > ? ORDER BY w.name LIMIT ?"
        return [Workspace(**dict(row)) for row in self._store.quickly(sql, (tenant, after, limit))]

    def workspace(self, tenant: str, name: str) -> Workspace:
        sql = f"{_WORKSPACE} WHERE w.tenant = ? AND w.name = ?"
        row = self._store.quickly(sql, (tenant, name)).fetchone()
        if row is None:
            raise WorkspaceNotFound
        return Workspace(**dict(row))

    def visitor(self, tenant: str, name: str) -> str | None:
        """The live session that has the workspace, be it only to look at it."""
        row = self._store.quickly(_LIVE, (tenant, name)).fetchone()
        return None if row is None else str(row["id"])

    def remove_workspace(self, tenant: str, name: str) -> str:
        """The volume that belongs to nobody now."""
        with self._store.writing() as connection:
            held = connection.execute(_LIVE, (tenant, name)).fetchone()
            if held is not None:
                raise WorkspaceInUse(name)
            sql = "DELETE FROM workspaces WHERE tenant = ? AND name = ? RETURNING volume"
            rows = connection.execute(sql, (tenant, name)).fetchall()
        if not rows:
            raise WorkspaceNotFound
        return str(rows[0][0])

    # Snapshots.

    def begin_snapshot(self, snapshot: Snapshot, most: int) -> None:
        """Counted before it is made; checkpoints have a bound of their own."""
        with self._store.writing() as connection:
            sql = "SELECT count(*) FROM snapshots WHERE tenant = ? AND kind = 'snapshot'"
            if (
                snapshot.kind == "snapshot"
                and connection.execute(sql, (snapshot.tenant,)).fetchone()[0] >= most
            ):
                raise TooManySnapshots(most)
            sql = """INSERT OR IGNORE INTO snapshots VALUES
                     (:id, :tenant, :session, :name, :kind, :execution, :state, :size, :created_at)"""
            if connection.execute(sql, vars(snapshot)).rowcount != 1:
                raise ServerBusy("This snapshot is being taken already. Ask again shortly.")

    def finish_snapshot(self, snapshot: str, size: int | None) -> bool:
        """False if it was given up meanwhile: its session has ended, for instance."""
        with self._store.writing() as connection:
            sql = "UPDATE snapshots SET state = 'ready', size = ? WHERE id = ?"
            return connection.execute(sql, (size, snapshot)).rowcount == 1

    def snapshot(self, tenant: str, snapshot: str) -> Snapshot | None:
        sql = "SELECT * FROM snapshots WHERE id = ? AND tenant = ? AND state = 'ready' AND kind != 'fork'"
        row = self._store.quickly(sql, (snapshot, tenant)).fetchone()
        return None if row is None else _snapshot(row)

    def any_snapshot(self, snapshot: str) -> Snapshot | None:
        """Also one that is still being taken."""
        row = self._store.quickly("SELECT * FROM snapshots WHERE id = ?", (snapshot,)).fetchone()
        return None if row is None else _snapshot(row)

    def snapshots(self, tenant: str, session: str | None = None) -> list[Snapshot]:
        """Oldest first."""
        sql = """SELECT * FROM snapshots WHERE tenant = ? AND (? IS NULL OR session = ?) AND state = 'ready'
                 AND kind != 'fork' ORDER BY created_at, id"""
        rows = self._store.quickly(sql, (tenant, session, session)).fetchall()
        return [_snapshot(row) for row in rows]

    def checkpoints(self, session: str) -> list[Snapshot]:
        """Oldest first; those that could not be taken stand among them, in the state `making`."""
        sql = "SELECT * FROM snapshots WHERE session = ? AND kind = 'checkpoint' ORDER BY created_at, id"
        return [_snapshot(row) for row in self._store.quickly(sql, (session,)).fetchall()]

    def has_checkpoint(self, session: str, execution: str) -> bool:
        sql = "SELECT 1 FROM snapshots WHERE session = ? AND execution = ? AND kind = 'checkpoint'"
        return self._store.quickly(sql, (session, execution)).fetchone() is not None

    def remove_snapshot(self, tenant: str, snapshot: str) -> bool:
        with self._store.writing() as connection:
            sql = "DELETE FROM snapshots WHERE id = ? AND tenant = ?"
            return connection.execute(sql, (snapshot, tenant)).rowcount == 1

    # For the keeper.

    def move(self, session: Session, sandbox: str, address: str, volume: str, now: float) -> bool:
        """The session goes on in another sandbox with another volume; False if it is not where it was."""
        with self._store.writing() as connection:
            sql = """UPDATE sessions
                     SET sandbox = ?, address = ?, volume = ?, last_used_at = ?, busy_until = 0
                     WHERE id = ? AND state = 'running' AND sandbox = ?"""
            values = (sandbox, address, volume, now, session.id, session.sandbox)
            if connection.execute(sql, values).rowcount != 1:
                return False
            connection.execute("UPDATE workspaces SET volume = ? WHERE volume = ?", (volume, session.volume))
            connection.execute("DELETE FROM detached WHERE session = ?", (session.id,))
            return True

    def tenant_number(self, tenant: str) -> int:
        row = self._store.quickly("SELECT rowid FROM tenants WHERE id = ?", (tenant,)).fetchone()
        return int(row[0])

    def promised(self) -> dict[str, int]:
        """Disk space that live sessions may take, by tenant."""
        sql = "SELECT tenant, coalesce(sum(disk), 0) FROM sessions WHERE state != 'ended' GROUP BY tenant"
        return {str(tenant): int(disk) for tenant, disk in self._store.quickly(sql)}

    def is_owned(self, volume: str) -> bool:
        return bool(self._store.quickly(_IS_OWNED, {"volume": volume}).fetchone()[0])

    def owned(self) -> set[str]:
        return {str(row[0]) for row in self._store.quickly(_OWNED).fetchall()}

    def freed(self) -> list[str]:
        """Volumes of checkpoints that are gone."""
        return [str(row[0]) for row in self._store.quickly("SELECT volume FROM freed LIMIT 1000")]

    def left_in(self, sandbox: str) -> list[str]:
        """Volumes that checkpoints of the session which ended in it have left."""
        sql = """SELECT freed.volume FROM sessions JOIN freed ON freed.session = sessions.id
                 WHERE sessions.sandbox = ? AND sessions.state = 'ended'"""
        return [str(row[0]) for row in self._store.quickly(sql, (sandbox,))]

    def forget(self, volume: str) -> None:
        """It is gone."""
        self._store.quickly("DELETE FROM freed WHERE volume = ?", (volume,))

    def drop_stale(self, now: float, oldest: float) -> None:
        """Snapshots that nobody finished, or that are too old, and workspaces that were never used."""
        with self._store.writing() as connection:
            stale = "(kind = 'fork' OR kind = 'snapshot' AND state = 'making') AND created_at < ?"
            connection.execute(f"DELETE FROM snapshots WHERE {stale}", (now - MAKING_SECONDS,))
            connection.execute("DELETE FROM snapshots WHERE created_at < ?", (oldest,))
            unused = """DELETE FROM workspaces WHERE last_used_at IS NULL AND volume NOT IN
                        (SELECT volume FROM sessions WHERE state != 'ended' AND volume IS NOT NULL)"""
            connection.execute(unused)

    def drop_lost(self, present: set[str], now: float) -> list[str]:
        """Snapshots whose volume is gone: there is nothing to go back to."""
        sql = "SELECT id FROM snapshots WHERE state = 'ready' AND created_at < ?"
        rows = self._store.quickly(sql, (now - MAKING_SECONDS,)).fetchall()
        lost = [str(row[0]) for row in rows if row[0] not in present]
        with self._store.writing() as connection:
            connection.executemany("DELETE FROM snapshots WHERE id = ?", [(one,) for one in lost])
            gone = "DELETE FROM freed WHERE volume NOT IN (SELECT value FROM json_each(?))"
            connection.execute(gone, (json.dumps(sorted(present)),))
        return lost


_OWNED = """SELECT volume FROM sessions WHERE state != 'ended' AND volume IS NOT NULL
            UNION SELECT volume FROM workspaces UNION SELECT id FROM snapshots"""
_IS_OWNED = """SELECT EXISTS (SELECT 1 FROM sessions WHERE volume = :volume AND state != 'ended')
               OR EXISTS (SELECT 1 FROM workspaces WHERE volume = :volume)
               OR EXISTS (SELECT 1 FROM snapshots WHERE id = :volume)"""


def _snapshot(row: sqlite3.Row) -> Snapshot:
    return Snapshot(**dict(row))
