"""The shapes of answers about tenants and their keys, and of what the doctor finds."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class TenantAnswer(BaseModel):
    tenant: str
    state: Literal["active", "suspended"]
    created_at: str
    suspended_at: str | None
    limits: dict[str, float | None] = Field(description="Quotas of its own; others are those of everybody.")


class TenantList(BaseModel):
    tenants: list[TenantAnswer]
    next_cursor: str | None


class UsageAnswer(BaseModel):
    """What a tenant has at this moment; bytes where it is about room."""

    model_config = ConfigDict(extra="allow")

    tenant: str
    sessions: int
    memory: int
    cpus: float
    disk: int
    background_executions: int
    workspaces: int
    snapshots: int
    uploads: int
    upload_bytes: int
    keys: int
    exec_seconds_today: float
    bytes_received_today: int
    bytes_sent_today: int


class KeyAnswer(BaseModel):
    key_id: str
    prefix: str = Field(description="How the key begins: all of it that may be shown.")
    tenant: str | None = Field(description="null: the operator's own.")
    name: str
    scopes: list[str]
    state: Literal["active", "expired", "revoked"]
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    replaced_by: str | None = Field(description="The key_id of the one that took its place.")


class NewKeyAnswer(KeyAnswer):
    key: str = Field(description="The whole key: told this once.")


class KeyList(BaseModel):
    keys: list[KeyAnswer]
    next_cursor: str | None


class LeaksAnswer(BaseModel):
    total: int
    counts: dict[str, int] = Field(description="By kind: containers, directories, mounts, sockets, ...")
    found: dict[str, list[str]] = Field(description="Their names, of kinds of which there are any; 100 each")


class FindingAnswer(BaseModel):
    id: str = Field(description="Stable, such as engine.live_restore.")
    severity: Literal["ok", "note", "minor", "major", "critical"]
    found: str
    wanted: str
    advice: str = Field(description="What to do; empty where all is well.")


class DoctorAnswer(BaseModel):
    grade: Literal["A", "B", "C", "D", "F"]
    meaning: str
    findings: list[FindingAnswer] = Field(description="The worst first.")
