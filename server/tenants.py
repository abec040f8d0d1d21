"""Tenants: who is isolated from others. Made, suspended and deleted by the operator alone."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping

from server import errors
from server.keeper_client import KeeperClient
from server.quotas import as_text
from server.records import Tenant
from server.store import Store
from server.tenant_rows import TenantRows
from server.usage import Usage

DEFAULT_TENANT = "default"  # whose keys are made where no tenant is named
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise errors.Invalid(
            "tenant", "A tenant's name is 1 to 64 letters, digits, dots, dashes and underscores."
        )
    return name


def checked(given: Mapping[str, object], known: Mapping[str, object]) -> str:
    """The quotas that a tenant has of its own, as the store keeps them, once these are changed."""
    kept = {name: value for name, value in known.items() if name not in given}
    try:
        as_text(dict.fromkeys(given))  # the names of those that go back to the default are checked too
        return as_text({**kept, **{name: value for name, value in given.items() if value != "default"}})
    except ValueError as exc:
        raise errors.Invalid("limits", f"'limits': {exc}.") from exc


class Tenants:
    def __init__(self, store: Store, keeper: KeeperClient, clock: Callable[[], float]) -> None:
        self._rows = TenantRows(store)
        self._usage = Usage(store)
        self._keeper = keeper
        self._clock = clock

    def create(self, name: str, limits: Mapping[str, object] | None = None) -> Tenant:
        """With quotas of its own, by name, where it shall not have what everybody has."""
        own = checked(limits or {}, {})
        self._rows.add(check_name(name), self._clock(), own)
        return self._rows.get(name)

    def change_limits(self, name: str, limits: Mapping[str, object]) -> Tenant:
        """Those that are named; `default` is what everybody has."""
        self._rows.change_limits(name, lambda own: checked(limits, json.loads(own)))
        return self._rows.get(name)

    def get(self, name: str) -> Tenant:
        return self._rows.get(name)

    def list(self, after: str, limit: int) -> tuple[list[Tenant], str | None]:
        """A page by name, and the cursor of the next one if there may be one."""
        found = self._rows.list(after, limit)
        return found, found[-1].id if len(found) == limit else None

    def suspend(self, name: str) -> Tenant:
        """Its keys open nothing, and what they have open ends; its sessions stay until their leases end."""
        self._rows.suspend(name, self._clock())
        return self._rows.get(name)

    def resume(self, name: str) -> Tenant:
        self._rows.suspend(name, None)
        return self._rows.get(name)

    def delete(self, name: str) -> None:
        """Gone at once for every caller. What the keeper cannot remove now, its sweeps will."""
        if name == DEFAULT_TENANT:
            words = "The tenant 'default' is the installation's own, and cannot be made again. Suspend it."
            raise errors.Invalid("tenant", words)
        left = self._rows.delete(name, self._clock())
        with contextlib.suppress(errors.Unavailable):
            for sandbox in left.sandboxes:
                self._keeper.close(sandbox)
            for volume in left.volumes:
                self._keeper.drop(volume)

    def usage(self, name: str) -> dict[str, int | float]:
        return self._usage.of(self._rows.get(name).id, self._clock())
