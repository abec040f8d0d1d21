"""What can go wrong with what a key may do, and with tenants and keys themselves.

SandboxError
├── Forbidden               the key is right, but not for this
│   ├── ScopeMissing        it lacks a scope; has .scope
│   └── TenantSuspended     its tenant may do nothing for now
├── TenantNotFound          no such tenant, or not yours to administer
├── KeyNotFound             no such key, or not yours to administer
├── Conflict
│   └── TenantExists        the name is taken, or was
└── LimitReached
    └── TooManyKeys
"""

from __future__ import annotations

from collections.abc import Mapping

from .base_errors import Conflict, LimitReached, SandboxError, text


class Forbidden(SandboxError):
    """The key is a right one, but may not do this. Do not retry: use another key."""


class ScopeMissing(Forbidden):
    """The key lacks a scope. Do not retry: use a key that has it, or have one made."""

    @property
    def scope(self) -> str | None:
        """The scope that is needed, such as "execute"."""
        return text(self.extras.get("scope"))


class TenantSuspended(Forbidden):
    """The operator has suspended your tenant. Do not retry: ask them."""


class TenantNotFound(SandboxError):
    """There is no such tenant, or it is not yours to administer. Do not retry: create it."""


class KeyNotFound(SandboxError):
    """There is no such key, or it is revoked already. Do not retry: list those there are."""


class TenantExists(Conflict):
    """There is, or was, a tenant of that name. Do not retry: use another name."""


class TooManyKeys(LimitReached):
    """There may be no more keys. Safe to retry when old ones were revoked and are forgotten."""


KEY_CODES: Mapping[str, type[SandboxError]] = {
    "forbidden": Forbidden,
    "scope_missing": ScopeMissing,
    "tenant_suspended": TenantSuspended,
    "tenant_not_found": TenantNotFound,
    "tenant_exists": TenantExists,
    "key_not_found": KeyNotFound,
    "too_many_keys": TooManyKeys,
}
