"""`sandboxctl init`, `config`, `close-all` and `unmount`: the installation as a whole."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields

from server import instance
from server.config import Config
from server.ctl.place import opened_store
from server.ctl.recorded import witness
from server.ctl.words import Commands, fail


def add_to(commands: Commands) -> None:
    for name, run, meaning, act in (
        ("init", _init, "make the state directory, or put its owners right", "instance.init"),
        ("config", _config, "print the configuration in force", None),
        ("close-all", _close_all, "remove every sandbox of this installation", "instance.close_all"),
        (
            "unmount",
            _unmount,
            "unmount the storage of workspaces; only when nothing runs",
            "instance.unmount",
        ),
    ):
        commands.add_parser(name, help=meaning, description=meaning).set_defaults(run=run, act=act)


def _init(config: Config, _: argparse.Namespace) -> None:
    instance.prepare(config)
    with opened_store(config):
        witness(config)
        print(config.state_dir)


def _config(config: Config, _: argparse.Namespace) -> None:
    values = {f"SANDBOX_{setting.name.upper()}": getattr(config, setting.name) for setting in fields(Config)}
    print(json.dumps(values, indent=2, default=str))


def _close_all(config: Config, arguments: argparse.Namespace) -> None:
    """Straight at the engine, keeper or no keeper: what is removed here it finds gone."""
    from server.keeper.runtime import RuntimeFailed
    from server.keeper.runtime.docker import DockerRuntime
    from server.keeper.storage import Storage

    installed, owner = instance.load(config), instance.web_owner(config)
    storage = Storage(config.sandboxes_dir, owner, None)
    try:
        runtime = DockerRuntime(config, installed.id, owner.gid)
        for sandbox in list(runtime.seen()):
            runtime.delete(sandbox.id)
            print(f"removed {sandbox.id}")
    except RuntimeFailed as exc:
        fail(arguments, "engine_unavailable", str(exc))
    for name in storage.list():
        storage.delete(name)


def _unmount(config: Config, _: argparse.Namespace) -> None:
    from server.keeper.volumes.choice import release

    release(config)
