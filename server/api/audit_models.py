"""The shapes of requests and answers about the audit."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, Field

from server.api.models import Request


def _as_recorded(moment: datetime) -> str:
    try:
        return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError as exc:
        raise ValueError("must be a time within years 1 to 9999") from exc


Moment = Annotated[AwareDatetime, AfterValidator(_as_recorded)]
Short = Annotated[str, Field(min_length=1, max_length=256)]


class ListAudit(Request):
    since: Moment | None = Field(None, description="Records of this time or later, RFC 3339.")
    until: Moment | None = Field(None, description="Records before this time.")
    action: Short | None = Field(None, description="Such as execution.run.")
    session: Short | None = Field(None, description="A session's id.")
    user: Short | None = Field(None, description="The user_id of the session.")
    actor: Short | None = Field(None, description="Such as key:ID, or server.")
    outcome: Literal["done", "refused", "failed"] | None = None
    order: Literal["asc", "desc"] = Field("asc", description="Oldest first, or newest first.")
    limit: Annotated[int, Field(ge=1, le=1000)] = Field(100, description="Records on a page at most.")
    cursor: Annotated[int, Field(ge=0, le=1 << 62)] | None = Field(
        None, description="The next_cursor of the page before."
    )


class ListAnyAudit(ListAudit):
    chain: Short = Field("@instance", description="A tenant's name, @instance or @anonymous.")


class AuditRecord(BaseModel):
    at: str
    action: str
    outcome: Literal["done", "refused", "failed"]
    actor: str = Field(description="key:ID, operator:NAME, server or anonymous.")
    code: str | None = Field(description="The problem's code, if it was not done.")
    status: int | None
    address: str | None
    session: str | None
    user: str | None
    request_id: str | None
    details: dict[str, Any]
    chain: str = Field(description="The tenant.")
    seq: int
    prev: str = Field(description="The hash of the record before.")
    hash: str = Field(description="SHA-256 of this record's line without this last field.")


class AuditPage(BaseModel):
    records: list[AuditRecord]
    next_cursor: int | None = Field(description="A page may be short or empty: go on while this is not null.")


# For /openapi.json.
QUERIES: dict[str, type[BaseModel]] = {"audit.list_audit": ListAudit, "audit.list_any": ListAnyAudit}
ANSWERS: dict[str, tuple[int, type[BaseModel] | None, str]] = {
    "audit.list_audit": (
        200,
        AuditPage,
        "What was done with the tenant's keys and to its sessions; all of it as NDJSON by Accept",
    ),
    "audit.list_any": (200, AuditPage, "The same of any tenant and of the installation"),
}
