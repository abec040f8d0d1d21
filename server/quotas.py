"""Quotas: what a tenant, and each of its users, may have at once and in a day.

The settings say what everybody may have; a tenant may have values of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from server.config import Config
from server.limit_settings import OF_TENANTS, QUOTAS, Quantity, quotas_from

NO_LIMIT = 1 << 53
_USER = "user."
_FREE = {name: None for name in QUOTAS if name not in OF_TENANTS}


@dataclass(frozen=True)
class Quotas:
    """By name; None is no limit."""

    tenant: Mapping[str, Quantity]
    user: Mapping[str, Quantity]

    def most(self, name: str, scope: str = "tenant") -> int:
        """The same as a whole number, however large."""
        allowed = (self.tenant if scope == "tenant" else self.user)[name]
        return NO_LIMIT if allowed is None else int(allowed)


def quotas_of(config: Config, own: str) -> Quotas:
    """`own` is what the tenant has of its own, as the store keeps it."""
    values: dict[str, Quantity] = json.loads(own)
    users = {name.removeprefix(_USER): value for name, value in values.items() if name.startswith(_USER)}
    return Quotas(
        {**defaults(config), **{name: value for name, value in values.items() if name in QUOTAS}},
        {"sessions": 1, **_FREE, **config.user_limits, **users},
    )


def defaults(config: Config) -> dict[str, Quantity]:
    return {
        "sessions": config.sessions_max,
        "memory": config.tenant_memory,
        "cpus": config.tenant_cpus,
        "disk": config.tenant_disk,
        "executions": config.tenant_executions_max,
        "streams": config.streams_max,
        "exec_seconds": config.exec_seconds_per_day,
        "bytes": config.bytes_per_day,
        "workspaces": config.tenant_workspaces,
    }


def as_text(given: Mapping[str, object]) -> str:
    """Checked, for the store. Raises ValueError."""
    return json.dumps(quotas_from(given), sort_keys=True)
