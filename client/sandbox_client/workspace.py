"""What is kept of a sandbox's files, for both clients: transfers, artifacts, snapshots, forks, workspaces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from . import auditing, transfers, uploads
from .auditing import AuditRecord
from .commands import new_id, said
from .connection import Ask, Connection
from .errors import ConfigurationError
from .file_errors import FileNotFound
from .file_infos import (
    FileInfo,
    RemotePath,
    SnapshotInfo,
    Transfer,
    UploadInfo,
    WorkspaceInfo,
    snapshot_info,
    upload_info,
    workspace_info,
)
from .files import entries
from .outgoing import Progress
from .results import SessionInfo, Undone, session_info, undone
from .session import Session
from .transfers import LocalPath
from .twofold import call

ARTIFACTS = "artifacts"
DEEPEST = 64
STORAGE_TIME = 120.0  # where the storage cannot share blocks, a snapshot is a copy
FORK_TIME = 600.0

Client = TypeVar("Client")


class WorkspaceOperations(Generic[Client]):
    """The part of a sandbox that is about its files as a whole. See `files` for single ones."""

    _session: Session

    @call
    async def upload(
        self, local: LocalPath, remote: RemotePath | None = None, *, progress: Progress | None = None
    ) -> Transfer:
        """Send a file, or a directory with all that is in it; without `remote`, by the same name.

        `remote` is the name it gets; a file may also go into a directory. What is in a directory already
        stays, unless there is something by the same name. `progress` is called with the bytes sent so far,
        and how many there are or None.
        """
        return await transfers.upload(self._session, local, remote, progress)

    @call
    async def download(
        self,
        remote: RemotePath,
        local: LocalPath,
        *,
        progress: Progress | None = None,
        max_bytes: int | None = None,
    ) -> Transfer:
        """Get a file, or a directory with all that is in it, and give it the name `local`.

        It appears there as a whole or not at all. Nothing is written elsewhere, whatever the sandbox sends:
        links that lead outside, devices and the like are left out and named in `skipped`. A directory that
        takes more than `max_bytes` is refused.
        """
        return await transfers.download(self._session, remote, local, progress, max_bytes)

    @call
    async def artifacts(self) -> list[FileInfo]:
        """The files below /workspace/artifacts as they are now; `result.artifacts` are one execution's."""
        try:
            found = [info async for info in entries(self._session, ARTIFACTS, DEEPEST, None)]
        except FileNotFound:
            return []
        return [info for info in found if info.is_file]

    @call
    async def snapshot(self, name: str | None = None) -> SnapshotInfo:
        """Keep the workspace as it is now. It outlives the session."""
        ask = Ask("POST", "/snapshots", said(name=name), idempotency_key=new_id(), work_time=STORAGE_TIME)
        return snapshot_info(await self._session.ask(ask))

    @call
    async def snapshots(self) -> list[SnapshotInfo]:
        """Those of this session, checkpoints too; oldest first."""
        return _snapshots(await self._session.ask(Ask("GET", "/snapshots")))

    @call
    async def list_snapshots(self) -> list[SnapshotInfo]:
        """All of yours, of whatever session. Opens none."""
        return _snapshots(await self._connection.ask(Ask("GET", "/v1/snapshots")))

    @call
    async def delete_snapshot(self, snapshot: str | SnapshotInfo) -> None:
        """Delete a snapshot, of whatever session. Opens none."""
        ask = Ask("DELETE", f"/v1/snapshots/{snapshot_id(snapshot)}", work_time=STORAGE_TIME)
        await self._connection.ask(ask)

    @call
    async def restore(self, snapshot: str | SnapshotInfo) -> SessionInfo:
        """Go back to a snapshot, in this session: all files are as they were then."""
        body = {"snapshot_id": snapshot_id(snapshot)}
        ask = Ask("POST", "/restore", body, work_time=STORAGE_TIME, safe=True)
        return session_info(await self._session.ask(ask))

    @call
    async def undo(self, execution_id: str | None = None) -> Undone:
        """Go back to before the last execution, or before the one you name. Needs checkpoint=True."""
        ask = Ask("POST", "/undo", said(execution_id=execution_id), work_time=STORAGE_TIME)
        return undone(await self._session.ask(ask))

    @call
    async def fork(self, count: int = 1) -> list[Client]:
        """So many copies, each a client of a session of its own with the same files, cwd and environment.

        Like a session that a client opened, each ends when its block is left or it is closed.
        """
        key = new_id()
        ask = Ask("POST", "/fork", query={"count": count}, idempotency_key=key, work_time=FORK_TIME)
        answer = await self._session.ask(ask)
        return [self._forked(session_info(one).session_id) for one in answer.get("sessions") or ()]

    @call
    async def upload_files(self, *files: LocalPath) -> list[str]:
        """Upload files for sessions to come: ids for the options `files` and `datasets`. Opens none."""
        return [one.file_id for one in await uploads.upload(self._connection, files)]

    @call
    async def list_uploads(self) -> list[UploadInfo]:
        """What you uploaded for sessions to come. Opens none."""
        query: dict[str, Any] = {}
        found: list[UploadInfo] = []
        while True:
            page = await self._connection.ask(Ask("GET", "/v1/uploads", query=query))
            found += [upload_info(one) for one in page.get("files") or ()]
            if not page.get("next_cursor"):
                return found
            query["cursor"] = page["next_cursor"]

    @call
    async def delete_upload(self, file_id: str) -> None:
        """Delete an upload. Sessions that have it keep it. Opens none."""
        await self._connection.ask(Ask("DELETE", f"/v1/uploads/{path_id(file_id)}"))

    @call
    async def audit(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        action: str | None = None,
        session: str | None = None,
        user: str | None = None,
        outcome: str | None = None,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[AuditRecord]:
        """What was done with your keys and to your sessions, `limit` records at most. Opens no session."""
        query = said(action=action, session=session, user=user, outcome=outcome)
        moments = said(since=since, until=until)
        query.update({name: moment.astimezone(timezone.utc).isoformat() for name, moment in moments.items()})
        query.update({"order": "desc"} if newest_first else {})
        return await auditing.read(self._connection, query, limit)

    @call
    async def workspaces(self) -> list[WorkspaceInfo]:
        """Your workspaces that outlive their sessions. Opens none."""
        query: dict[str, Any] = {}
        found: list[WorkspaceInfo] = []
        while True:
            page = await self._connection.ask(Ask("GET", "/v1/workspaces", query=query))
            found += [workspace_info(one) for one in page.get("workspaces") or ()]
            if not page.get("next_cursor"):
                return found
            query["cursor"] = page["next_cursor"]

    @call
    async def delete_workspace(self, name: str) -> None:
        """Delete a workspace with all that is in it. Raises WorkspaceInUse while a session has it open."""
        await self._connection.ask(
            Ask("DELETE", f"/v1/workspaces/{quote(name, safe='')}", work_time=STORAGE_TIME)
        )

    @call
    async def download_workspace(
        self, name: str, local: LocalPath, *, path: RemotePath = ".", progress: Progress | None = None
    ) -> Transfer:
        """Get a workspace, or a directory in it, without a session. Otherwise like `download`."""
        place = _Workspace(self._connection, name)
        return await transfers.download_tree(place, path, local, progress, None)

    def _forked(self, session_id: str) -> Client:
        raise NotImplementedError

    @property
    def _connection(self) -> Connection:
        return self._session.connection


class _Workspace:
    """A workspace without a session, as a place of files."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self._prefix = f"/v1/workspaces/{quote(name, safe='')}"

    async def of(self, ask: Ask) -> Ask:
        return ask.under(self._prefix)


def _snapshots(answer: Mapping[str, Any]) -> list[SnapshotInfo]:
    return [snapshot_info(one) for one in answer.get("snapshots") or ()]


def snapshot_id(snapshot: str | SnapshotInfo) -> str:
    """The id, if it may be one."""
    return path_id(snapshot if isinstance(snapshot, str) else snapshot.snapshot_id)


def path_id(text: str) -> str:
    """An id that becomes part of a path."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,200}", text):
        raise ConfigurationError(f"Not an id: {text[:80]!r}.")
    return text
