"""API keys: `e2b_`, sixteen hex digits that name the key, sixty-four that are its secret.

Only a SHA-256 of the secret is stored: it has 256 random bits, so a slow hash would add nothing but time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from server.store import Key, Store

_SHAPE = re.compile(r"e2b_([0-9a-f]{16})([0-9a-f]{64})")


def new_key(store: Store, tenant: str, name: str, now: float) -> str:
    """Make a key and return it: this is the only time that it can be seen."""
    key_id, secret = secrets.token_hex(8), secrets.token_hex(32)
    store.add_tenant(tenant, now)
    store.add_key(Key(key_id, tenant, name, _hash(secret), now, None))
    return f"e2b_{key_id}{secret}"


def key_of(store: Store, presented: str) -> Key | None:
    """The key that this is, or None for every way in which it can be wrong."""
    match = _SHAPE.fullmatch(presented)
    if match is None:
        return None
    key = store.key(match[1])
    known = key.hash if key is not None else _hash("")
    if not hmac.compare_digest(_hash(match[2]), known) or key is None or key.revoked_at is not None:
        return None
    return key


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
