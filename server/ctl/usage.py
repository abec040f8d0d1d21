"""`sandboxctl usage`: what tenants have at this moment."""

from __future__ import annotations

import argparse

from server.config import Config
from server.ctl.place import opened_tenants
from server.ctl.tenants import every
from server.ctl.words import Commands, command, table, tell


def add_to(commands: Commands) -> None:
    usage = command(commands, "usage", "what tenants have: sessions, memory, disk and more, in bytes", _usage)
    usage.add_argument("tenant", nargs="?", help="one tenant (default: all)")


def _usage(config: Config, arguments: argparse.Namespace) -> None:
    with opened_tenants(config) as tenants:
        names = [arguments.tenant] if arguments.tenant else [one.id for one in every(tenants)]
        facts = [{"tenant": name, **tenants.usage(name)} for name in names]
    heads = list(facts[0]) if facts else ["tenant"]
    tell(arguments, {"tenants": facts}, table(heads, [list(one.values()) for one in facts]))
