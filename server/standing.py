"""Where a tenant, or a user of it, stands: every quota with what is used and what is allowed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from server import errors
from server.concurrency import Concurrency
from server.quota_rows import QuotaRows

DiskUsed = Callable[[str], int | None]


class Standing:
    def __init__(self, quotas: QuotaRows, concurrency: Concurrency, disk_used: DiskUsed) -> None:
        self._quotas = quotas
        self._concurrency = concurrency
        self._measure = disk_used

    def of(self, tenant: str, user: str | None = None) -> dict[str, dict[str, Any]]:
        """By name. What cannot be told now is None, and so is what has no limit."""
        quotas = self._quotas.of(tenant)
        used: dict[str, float | None] = {
            **self._quotas.held(tenant, user),
            **self._concurrency.in_use(tenant, user),
        }
        if user is None:
            used["disk"] = self._disk_used(tenant)
        allowed = quotas.tenant if user is None else quotas.user
        return {name: {"used": used[name], "allowed": most} for name, most in allowed.items()}

    def _disk_used(self, tenant: str) -> int | None:
        with contextlib.suppress(errors.Unavailable):
            return self._measure(tenant)
        return None
