"""`sandboxctl tenant`: add, list, show, suspend, resume and delete tenants."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from server.administered import tenant_as_json
from server.config import Config
from server.ctl.place import opened_tenants
from server.ctl.words import Commands, command, group, table, tell
from server.records import Tenant
from server.tenants import Tenants

_PAGE = 1000


def add_to(commands: Commands) -> None:
    tenant = group(commands, "tenant", "tenants: who is isolated from others")
    command(tenant, "list", "list them all", _list)
    for name, meaning, run, act in (
        ("add", "make a tenant; give it a key with `key new --tenant NAME`", _add, "tenant.create"),
        ("set", "change the quotas of a tenant", _set, "tenant.set"),
        ("show", "show one, and what it has", _show, None),
        (
            "suspend",
            "let its keys open nothing; its sessions stay until their leases end",
            _suspend,
            "tenant.suspend",
        ),
        ("resume", "end a suspension", _resume, "tenant.resume"),
        (
            "delete",
            "end its sessions, revoke its keys, remove all it has; its name is not given again",
            _delete,
            "tenant.delete",
        ),
    ):
        parser = command(tenant, name, meaning, run, act)
        parser.add_argument("name", help="the tenant's name")
        if name in ("add", "set"):
            parser.add_argument(
                "--limit",
                action="append",
                default=[],
                metavar="NAME=VALUE",
                help="a quota of its own, such as sessions=10, memory=4g or user.exec_seconds=3600; "
                "none: no limit, default: what everybody has; may be repeated",
            )


def every(tenants: Tenants) -> Iterator[Tenant]:
    after: str | None = ""
    while after is not None:
        found, after = tenants.list(after, _PAGE)
        yield from found


def _list(config: Config, arguments: argparse.Namespace) -> None:
    with opened_tenants(config) as tenants:
        found = [tenant_as_json(one) for one in every(tenants)]
    heads = ("tenant", "state", "created_at", "suspended_at")
    tell(arguments, {"tenants": found}, table(heads, [[one[head] for head in heads] for one in found]))


def _add(config: Config, arguments: argparse.Namespace) -> None:
    with opened_tenants(config) as tenants:
        made = tenants.create(arguments.name, _limits(arguments))
    tell(arguments, tenant_as_json(made), f"added {made.id}")


def _set(config: Config, arguments: argparse.Namespace) -> None:
    with opened_tenants(config) as tenants:
        changed = tenants.change_limits(arguments.name, _limits(arguments))
    tell(arguments, tenant_as_json(changed), f"changed {changed.id}: {changed.limits}")


def _limits(arguments: argparse.Namespace) -> dict[str, object]:
    return dict(text.partition("=")[::2] for text in arguments.limit)


def _show(config: Config, arguments: argparse.Namespace) -> None:
    with opened_tenants(config) as tenants:
        facts = {**tenant_as_json(tenants.get(arguments.name)), "usage": tenants.usage(arguments.name)}
    plain = [(name, value) for name, value in facts.items() if name != "usage"]
    tell(arguments, facts, table(("what", "value"), [*plain, *facts["usage"].items()]))


def _suspend(config: Config, arguments: argparse.Namespace) -> None:
    with opened_tenants(config) as tenants:
        tell(arguments, tenant_as_json(tenants.suspend(arguments.name)), f"suspended {arguments.name}")


def _resume(config: Config, arguments: argparse.Namespace) -> None:
    with opened_tenants(config) as tenants:
        tell(arguments, tenant_as_json(tenants.resume(arguments.name)), f"resumed {arguments.name}")


def _delete(config: Config, arguments: argparse.Namespace) -> None:
    with opened_tenants(config) as tenants:
        tenants.delete(arguments.name)
    tell(arguments, {"tenant": arguments.name, "state": "deleted"}, f"deleted {arguments.name}")
