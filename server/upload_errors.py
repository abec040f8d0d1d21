"""What can go wrong with uploads.

SandboxError
|-- UploadNotFound          not there, not yours, or no longer
`-- Limited
    `-- TooManyUploads      the tenant keeps as much as it may
"""

from __future__ import annotations

from server.errors import Limited, SandboxError


class UploadNotFound(SandboxError):
    """There is no such upload, or it is another tenant's; it may have been too old."""

    code = "upload_not_found"

    def __init__(self) -> None:
        super().__init__("There is no such upload, or no longer. Send the file again with POST /upload.")


class TooManyUploads(Limited):
    """Nothing was kept of the request."""

    code = "too_many_uploads"
    retry_after = 60

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"This tenant may keep {limit} bytes of uploads. Delete some with DELETE /v1/uploads/ID first.",
            limit="uploads",
            allowed=limit,
        )
