"""What the kinds of errors are built from: the root of the tree in `errors`, and its wider branches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class SandboxError(Exception):
    """Anything that this package raises; as it stands, a problem whose code this version does not know.

    Retry when `retryable` is true.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
        request_id: str | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.retryable = retryable
        self.retry_after = retry_after
        self.request_id = request_id
        self.extras = dict(extras or {})


class InvalidRequest(SandboxError):
    """The server refuses the request as it stands. Do not retry: change what the message names."""

    @property
    def field(self) -> str | None:
        """The field that is wrong, where one is."""
        return text(self.extras.get("field"))


class Conflict(SandboxError):
    """The request contradicts another, or the state things are in. Retry only when `retryable` is true."""


class LimitReached(SandboxError):
    """Too much or too often; nothing ran. Safe to retry after `retry_after` seconds."""

    @property
    def limit(self) -> Any:
        """The name of the limit that was reached: `sessions`, `memory`, `rate_create` and so on."""
        return self.extras.get("limit")

    @property
    def used(self) -> Any:
        """How much of it is in use."""
        return self.extras.get("used")

    @property
    def allowed(self) -> Any:
        """How much of it there may be."""
        return self.extras.get("allowed")


def text(value: object) -> str | None:
    return value if isinstance(value, str) else None
