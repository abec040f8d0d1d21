"""API keys: `e2b_`, sixteen hex digits that name the key, sixty-four that are its secret.

Only a salted SHA-256 of the secret is stored: it has 256 random bits, so a slow hash would add nothing but
time. Keys that were made before there were salts have an empty one, which gives the hash that they had.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Collection

from server.errors import Invalid
from server.key_rows import KeyRows
from server.records import ADMIN, SCOPES, TENANT_SCOPES, Key
from server.store import Store
from server.tenant_errors import KeyNotFound

_SHAPE = re.compile(r"e2b_([0-9a-f]{16})([0-9a-f]{64})")
_NO_SALT = bytes(16).hex()
OPERATOR = ""  # whose keys are of no tenant


class Keys:
    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._rows = KeyRows(store)
        self._clock = clock

    def of(self, presented: str) -> Key | None:
        """The key that this is, or None for every way in which it can be wrong."""
        match = _SHAPE.fullmatch(presented)
        if match is None:
            return None
        key = self._store.key(match[1])
        known, salt = ("", _NO_SALT) if key is None else (key.hash, key.salt)
        if not hmac.compare_digest(_hash(salt, match[2]), known) or key is None:
            return None
        return key if key.state(self._clock()) == "active" else None

    def is_over(self, key_id: str) -> bool:
        """Whether what was begun with it must end: it is revoked or expired, its tenant suspended or gone."""
        key = self._store.key(key_id)
        return key is None or key.suspended or key.state(self._clock()) != "active"

    def create(
        self, tenant: str, name: str, scopes: Collection[str] | None = None, expires_in: float | None = None
    ) -> tuple[Key, str]:
        """The key, and its text: this is the only time that it can be seen."""
        wanted = frozenset(scopes or (TENANT_SCOPES if tenant else {ADMIN}))
        if unknown := sorted(wanted - SCOPES):
            raise Invalid(
                "scopes", f"There is no scope '{unknown[0][:40]}'. Known: {', '.join(sorted(SCOPES))}."
            )
        if tenant == OPERATOR and wanted != {ADMIN}:
            raise Invalid("scopes", "A key of no tenant has the scope 'admin' and no other.")
        now = self._clock()
        expires_at = None if expires_in is None else now + expires_in
        key, text = _draft(tenant, name, wanted, expires_at, now)
        self._rows.add(key)
        return key, text

    def rotate(self, key_id: str, grace: float, within: str | None = None) -> tuple[Key, str]:
        """Another key in its place, alike but for id and secret. The old one works for `grace` seconds."""
        self.get(key_id, within)
        now = self._clock()
        draft, text = _draft("", "", frozenset(), None, now)
        return self._rows.rotate(key_id, draft, now + grace, now), text

    def revoke(self, key_id: str, within: str | None = None) -> Key:
        key = self.get(key_id, within)
        if not self._rows.revoke(key_id, self._clock()):
            raise KeyNotFound
        return key

    def get(self, key_id: str, within: str | None = None) -> Key:
        """`within` a tenant: keys of others are not found."""
        key = self._store.key(key_id)
        if key is None or within not in (None, key.tenant):
            raise KeyNotFound
        return key

    def list(self, tenant: str | None, after: str, limit: int) -> tuple[list[Key], str | None]:
        """A page, and the cursor of the next one if there may be one."""
        created_at, _, last = after.partition("/")
        found = self._rows.list(tenant, (float(created_at or 0), last), limit)
        return found, f"{found[-1].created_at!r}/{found[-1].id}" if len(found) == limit else None


def new_key(
    store: Store,
    tenant: str,
    name: str,
    now: float,
    scopes: Collection[str] | None = None,
    expires_in: float | None = None,
) -> str:
    """A key for a tenant that may have to be made first."""
    store.add_tenant(tenant, now)
    return Keys(store, lambda: now).create(tenant, name, scopes, expires_in)[1]


def _draft(
    tenant: str, name: str, scopes: frozenset[str], expires_at: float | None, now: float
) -> tuple[Key, str]:
    key_id, secret, salt = secrets.token_hex(8), secrets.token_hex(32), secrets.token_hex(16)
    key = Key(key_id, tenant, name, _hash(salt, secret), now, None, salt, scopes, expires_at)
    return key, f"e2b_{key_id}{secret}"


def _hash(salt: str, secret: str) -> str:
    return hashlib.sha256(bytes.fromhex(salt) + secret.encode()).hexdigest()
