"""Tenants and keys as operators see them."""

from __future__ import annotations

import json
from typing import Any

from server.records import Key, Tenant
from server.times import timestamp


def tenant_as_json(tenant: Tenant) -> dict[str, Any]:
    return {
        "tenant": tenant.id,
        "state": tenant.state,
        "created_at": timestamp(tenant.created_at),
        "suspended_at": _time(tenant.suspended_at),
        "limits": json.loads(tenant.limits),
    }


def key_as_json(key: Key, now: float) -> dict[str, Any]:
    """Never its secret, of which only a hash is known."""
    return {
        "key_id": key.id,
        "prefix": f"e2b_{key.id}",
        "tenant": key.tenant or None,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "state": key.state(now),
        "created_at": timestamp(key.created_at),
        "expires_at": _time(key.expires_at),
        "revoked_at": _time(key.revoked_at),
        "replaced_by": key.replaced_by,
    }


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else timestamp(seconds)
