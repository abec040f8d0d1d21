"""What can go wrong with uploads, workspaces, snapshots and the room they take.

SandboxError
├── UploadNotFound          no such upload, or not yours, or it has expired
├── WorkspaceNotFound       no such workspace, or not yours
├── SnapshotNotFound        no such snapshot, or not yours
├── StorageUnsupported      this server's storage cannot do it
├── Conflict
│   ├── WorkspaceInUse      a session has it open
│   ├── NothingToUndo       there is no checkpoint to go back to
│   └── TenantQuota         all that you keep together takes too much room
└── LimitReached
    ├── TooManyUploads
    └── TooManySnapshots
"""

from __future__ import annotations

from collections.abc import Mapping

from .base_errors import Conflict, LimitReached, SandboxError


class UploadNotFound(SandboxError):
    """There is no such upload, or it has expired, or it is not yours. Do not retry: upload it again."""


class WorkspaceNotFound(SandboxError):
    """There is no such workspace, or it is not yours. Do not retry: open a session with its name."""


class SnapshotNotFound(SandboxError):
    """There is no such snapshot, or it is not yours. Do not retry: list those there are."""


class StorageUnsupported(SandboxError):
    """This server's storage cannot do it. Do not retry: its operator can change that."""


class WorkspaceInUse(Conflict):
    """A session has the workspace open. Safe to retry when that has ended."""


class NothingToUndo(Conflict):
    """There is no checkpoint to go back to. Do not retry: open sessions with checkpoint=True."""


class TenantQuota(Conflict):
    """All that you keep together takes too much room. Safe to retry after deleting some of it."""


class TooManyUploads(LimitReached):
    """No more uploads may be kept. Safe to retry after deleting one."""


class TooManySnapshots(LimitReached):
    """No more snapshots may be kept. Safe to retry after deleting one."""


WORKSPACE_CODES: Mapping[str, type[SandboxError]] = {
    "upload_not_found": UploadNotFound,
    "too_many_uploads": TooManyUploads,
    "workspace_not_found": WorkspaceNotFound,
    "workspace_in_use": WorkspaceInUse,
    "snapshot_not_found": SnapshotNotFound,
    "too_many_snapshots": TooManySnapshots,
    "nothing_to_undo": NothingToUndo,
    "tenant_quota": TenantQuota,
    "storage_unsupported": StorageUnsupported,
}
