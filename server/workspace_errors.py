"""What can go wrong with workspaces and snapshots.

SandboxError
|-- WorkspaceNotFound    not there, or not yours
|-- WorkspaceInUse       a live session has it
|-- SnapshotNotFound     not there, or not yours
|-- NothingToUndo        no checkpoint is kept
|-- TenantQuota          the tenant's disk space is used up
|-- StorageUnsupported   this server's storage cannot do it
|-- Unavailable
|   `-- StorageFull      the server's own storage is used up
`-- Limited
    `-- TooManySnapshots
"""

from __future__ import annotations

from server.errors import Limited, SandboxError, Unavailable


class WorkspaceNotFound(SandboxError):
    code = "workspace_not_found"

    def __init__(self) -> None:
        super().__init__("There is no such workspace. GET /v1/workspaces lists them.")


class WorkspaceInUse(SandboxError):
    code = "workspace_in_use"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"A live session has the workspace '{name}'. Close it first, or use another workspace.",
            workspace=name,
        )


class SnapshotNotFound(SandboxError):
    code = "snapshot_not_found"

    def __init__(self) -> None:
        super().__init__("There is no such snapshot. GET /v1/snapshots lists them.")


class NothingToUndo(SandboxError):
    code = "nothing_to_undo"

    def __init__(self) -> None:
        super().__init__(
            'No checkpoint is kept for that. Create sessions with "checkpoint": true; the last ones are kept.'
        )


class TenantQuota(SandboxError):
    """Deleting makes room; what copies share is freed with the last of them."""

    code = "tenant_quota"

    def __init__(self, used: int, allowed: int) -> None:
        super().__init__(
            f"This tenant's workspaces and snapshots hold {used} of {allowed} bytes. Delete some first.",
            limit="disk",
            used=used,
            allowed=allowed,
        )


class StorageUnsupported(SandboxError):
    code = "storage_unsupported"

    def __init__(self) -> None:
        super().__init__(
            "This server cannot keep workspaces or take snapshots. The operator's GET /readyz says why."
        )


class TooManySnapshots(Limited):
    code = "too_many_snapshots"
    retry_after = 5

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"This tenant has {limit} snapshots, as many as it may have. Delete one first.",
            limit="snapshots",
            used=limit,
            allowed=limit,
        )


class StorageFull(Unavailable):
    """Sessions that are open go on; the operator can make the storage larger."""

    code = "storage_full"
    retry_after = 30

    def __init__(self) -> None:
        super().__init__(
            "The server has no disk space for another workspace or snapshot. Close sessions, or try later."
        )
