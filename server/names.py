"""What requests and executions are called, so that the same one is known again."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass


@dataclass(frozen=True)
class Idempotency:
    """The caller's key for this request, and a fingerprint of the request itself."""

    key: str
    fingerprint: str


@dataclass(frozen=True)
class Name:
    """What an execution is called, and a fingerprint of the request: the same name runs once."""

    id: str
    fingerprint: str
    chosen: bool = False  # by the caller


def name_for(session_id: str, own: str | None, fingerprint: str, idempotency: Idempotency | None) -> Name:
    if own is not None:
        return Name(own, fingerprint, chosen=True)
    if idempotency is None:
        return Name(secrets.token_hex(16), "")
    digest = hashlib.sha256(f"{session_id}/{idempotency.key}".encode()).hexdigest()
    return Name(digest[:32], idempotency.fingerprint)
