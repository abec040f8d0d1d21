"""The shapes of requests about tenants and their keys."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from server.api.models import Request, printable

_YEARS = 10 * 366 * 86400
_MONTH = 30 * 86400
TenantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Limits = Annotated[dict[str, float | str | None], Field(max_length=32)]
Scope = Literal["sessions:read", "sessions:write", "execute", "files", "admin"]


class NewTenant(Request):
    tenant: TenantName = Field(description="Its name, for good: it is not given a second time.")
    limits: Limits | None = Field(None, description="Quotas of its own by name; null: no limit.")


class ChangeTenant(Request):
    limits: Limits = Field(description='Quotas that change; null: no limit, "default": what everybody has.')


class ListTenants(Request):
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    cursor: TenantName | None = None


class NewKey(Request):
    tenant: TenantName | None = Field(None, description="Whose key it shall be.")
    admin: Literal[True] | None = Field(None, description="Instead of a tenant: the operator's own.")
    name: Annotated[str, Field(max_length=256), AfterValidator(printable)] = Field(
        "", description="To tell keys apart."
    )
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=5)] | None = Field(
        None, description="What it may do; without a list all but admin."
    )
    expires_in: Annotated[float, Field(ge=1, le=_YEARS, allow_inf_nan=False)] | None = Field(
        None, description="Seconds; without it the key is good until it is revoked."
    )

    @model_validator(mode="after")
    def _consistent(self) -> NewKey:
        if (self.tenant is None) == (self.admin is None):
            raise ValueError('say whose it shall be: "tenant": NAME, or "admin": true')
        return self


class ListKeys(Request):
    tenant: TenantName | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    cursor: Annotated[str, Field(pattern=r"^\d+(\.\d+)?/[0-9a-f]{16}$")] | None = None


class RotateKey(Request):
    grace: Annotated[float, Field(ge=0, le=_MONTH, allow_inf_nan=False)] = Field(
        0.0, description="Seconds for which the old key still works."
    )
