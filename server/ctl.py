"""What an operator does at the command line, as the user that runs the keeper."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from dataclasses import fields

from server import config as configuration
from server import instance as installation
from server.config import BadConfig, Config
from server.keys import new_key
from server.store import Store

_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def main(argv: list[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(configuration.load(os.environ), arguments)
    except BadConfig as exc:
        sys.exit(f"server.ctl: {exc}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m server.ctl", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    init = commands.add_parser("init", help="make the state directory, or put its owners right")
    init.set_defaults(run=_init)
    show = commands.add_parser("config", help="print the configuration in force")
    show.set_defaults(run=_config)
    close = commands.add_parser("close-all", help="remove every sandbox of this installation")
    close.set_defaults(run=_close_all)
    key = commands.add_parser("key", help="API keys").add_subparsers(required=True, metavar="COMMAND")
    new = key.add_parser("new", help="make a key and print it, this once")
    new.add_argument("--tenant", default="default", help="whom the key belongs to (default: %(default)s)")
    new.add_argument("--name", default="", help="a name to tell keys apart")
    new.add_argument("--json", action="store_true", help="print JSON")
    new.set_defaults(run=_key_new)
    revoke = key.add_parser("revoke", help="make a key worthless at once")
    revoke.add_argument("id", help="the key's id: the sixteen digits after e2b_, or the whole key")
    revoke.set_defaults(run=_key_revoke)
    return parser


def _init(config: Config, _: argparse.Namespace) -> None:
    installation.prepare(config)
    _store(config).close()
    print(config.state_dir)


def _config(config: Config, _: argparse.Namespace) -> None:
    values = {f"SANDBOX_{setting.name.upper()}": getattr(config, setting.name) for setting in fields(Config)}
    print(json.dumps(values, indent=2))


def _key_new(config: Config, arguments: argparse.Namespace) -> None:
    if not _TENANT.fullmatch(arguments.tenant):
        sys.exit("server.ctl: a tenant's name is 1 to 64 letters, digits, dots, dashes and underscores")
    store = _store(config)
    key = new_key(store, arguments.tenant, arguments.name, time.time())
    store.close()
    print(
        json.dumps({"tenant": arguments.tenant, "name": arguments.name, "key": key})
        if arguments.json
        else key
    )


def _key_revoke(config: Config, arguments: argparse.Namespace) -> None:
    store = _store(config)
    revoked = store.revoke_key(arguments.id.removeprefix("e2b_")[:16], time.time())
    store.close()
    if not revoked:
        sys.exit("server.ctl: there is no such key, or it is revoked already")
    print("revoked")


def _close_all(config: Config, _: argparse.Namespace) -> None:
    """Straight at the engine, keeper or no keeper: what is removed here it finds gone."""
    from server.keeper.runtime import RuntimeFailed
    from server.keeper.runtime.docker import DockerRuntime
    from server.keeper.storage import Storage

    instance, owner = installation.load(config), installation.web_owner(config)
    storage = Storage(config.sandboxes_dir, owner)
    try:
        runtime = DockerRuntime(config, instance.id, owner.gid)
        for sandbox in list(runtime.seen()):
            runtime.delete(sandbox.id)
            print(f"removed {sandbox.id}")
    except RuntimeFailed as exc:
        sys.exit(f"server.ctl: {exc}")
    for name in storage.list():
        storage.delete(name)


def _store(config: Config) -> Store:
    """An installation that stands keeps its owners, whoever asks; only `init` puts them right."""
    if not (config.state / "instance").exists():
        installation.prepare(config)
    store = Store(config.store_path)
    store.check_writable(time.time())
    return store


if __name__ == "__main__":
    main()
