"""What can go wrong with tenants and keys.

SandboxError
|-- Forbidden            the key is right, and may not do this
|   |-- ScopeMissing     it lacks a scope; `scope` names it
|   `-- TenantSuspended  its tenant may do nothing for now
|-- TenantNotFound       not there, or not yours to administer
|-- TenantExists         the name is taken, or was
|-- KeyNotFound          not there, or not yours to administer
`-- Limited
    `-- TooManyKeys
"""

from __future__ import annotations

from server.errors import Limited, SandboxError


class Forbidden(SandboxError):
    """The key is a right one, but not for this."""

    code = "forbidden"


class ScopeMissing(Forbidden):
    code = "scope_missing"

    def __init__(self, scope: str, whose: str = "") -> None:
        super().__init__(
            f"This key lacks the scope '{scope}'{whose}. Use one that has it, or have one made.", scope=scope
        )


class TenantSuspended(Forbidden):
    code = "tenant_suspended"

    def __init__(self) -> None:
        super().__init__("This tenant is suspended: its keys open nothing for now. Ask the operator.")


class TenantNotFound(SandboxError):
    code = "tenant_not_found"

    def __init__(self) -> None:
        super().__init__("There is no such tenant. Create it with POST /v1/admin/tenants.")


class TenantExists(SandboxError):
    """Names are given once: what was recorded of a tenant that is gone must not become another's."""

    code = "tenant_exists"

    def __init__(self) -> None:
        super().__init__("There is, or was, a tenant of that name. Use another one.")


class KeyNotFound(SandboxError):
    code = "key_not_found"

    def __init__(self) -> None:
        super().__init__("There is no such key, or it is revoked already.")


class TooManyKeys(Limited):
    code = "too_many_keys"
    retry_after = 3600

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"There are {limit} keys already, as many as there may be. Revoked ones count for 30 days.",
            limit="keys",
            used=limit,
            allowed=limit,
        )
