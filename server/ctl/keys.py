"""`sandboxctl key`: make, list, rotate and revoke keys, of tenants and the operator's own."""

from __future__ import annotations

import argparse
import time
from typing import Any

from server.administered import key_as_json
from server.config import Config
from server.ctl.place import opened_keys, opened_store
from server.ctl.words import Commands, command, group, lifetime, seconds, table, tell
from server.keys import OPERATOR, Keys
from server.records import SCOPES, Key
from server.tenants import DEFAULT_TENANT, check_name

_PAGE = 1000


def add_to(commands: Commands) -> None:
    key = group(commands, "key", "API keys")
    new = command(key, "new", "make a key and print it, this once", _new, act="key.create")
    whose = new.add_mutually_exclusive_group()
    whose.add_argument(
        "--tenant", default=DEFAULT_TENANT, help="whose; made if there is none (default: %(default)s)"
    )
    whose.add_argument("--admin", action="store_true", help="the operator's own, for /v1/admin: of no tenant")
    new.add_argument("--name", default="", help="a name to tell keys apart")
    scopes = ", ".join(sorted(SCOPES))
    new.add_argument(
        "--scope",
        action="append",
        metavar="SCOPE",
        help=f"may be repeated: {scopes} (default: all but admin)",
    )
    new.add_argument(
        "--expires-in", type=lifetime, metavar="TIME", help="seconds, or such as 12h or 30d (default: never)"
    )
    listed = command(key, "list", "list keys, those that are over too; never their secrets", _list)
    listed.add_argument("--tenant", help="only of this tenant")
    meaning = "make another key in the place of one, and print it, this once"
    rotate = command(key, "rotate", meaning, _rotate, act="key.rotate")
    rotate.add_argument(
        "--grace",
        type=seconds,
        default=0.0,
        metavar="TIME",
        help="how long the old one still works (default: not)",
    )
    revoke = command(key, "revoke", "make a key worthless at once", _revoke, act="key.revoke")
    for parser in (rotate, revoke):
        parser.add_argument("id", help="the key's id: the sixteen digits after e2b_, or the whole key")


def _new(config: Config, arguments: argparse.Namespace) -> None:
    tenant = OPERATOR if arguments.admin else check_name(arguments.tenant)
    with opened_store(config) as store:
        if tenant != OPERATOR:
            store.add_tenant(tenant, time.time())
        made = Keys(store, time.time).create(tenant, arguments.name, arguments.scope, arguments.expires_in)
    arguments.new_key_id = made[0].id  # for the audit
    _show_once(arguments, *made)


def _list(config: Config, arguments: argparse.Namespace) -> None:
    found: list[dict[str, Any]] = []
    after: str | None = ""
    with opened_keys(config) as keys:
        while after is not None:
            page, after = keys.list(arguments.tenant, after, _PAGE)
            found += [key_as_json(one, time.time()) for one in page]
    heads = ("prefix", "tenant", "name", "state", "scopes", "created_at", "expires_at")
    rows = [[",".join(one[h]) if h == "scopes" else one[h] for h in heads] for one in found]
    tell(arguments, {"keys": found}, table(heads, rows))


def _rotate(config: Config, arguments: argparse.Namespace) -> None:
    with opened_keys(config) as keys:
        made = keys.rotate(_id(arguments), arguments.grace)
    arguments.new_key_id = made[0].id
    _show_once(arguments, *made)


def _revoke(config: Config, arguments: argparse.Namespace) -> None:
    with opened_keys(config) as keys:
        key = keys.revoke(_id(arguments))
    tell(arguments, {"key_id": key.id, "state": "revoked"}, "revoked")


def _id(arguments: argparse.Namespace) -> str:
    return str(arguments.id).removeprefix("e2b_")[:16]


def _show_once(arguments: argparse.Namespace, key: Key, text: str) -> None:
    tell(arguments, {**key_as_json(key, time.time()), "key": text}, text)
