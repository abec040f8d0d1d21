"""`sandboxctl backup` and `restore`: what an installation cannot be made again from.

Store and audit are copied as SQLite copies them, whole and while they are in use. The file that holds all
workspaces can only be copied when nothing has it mounted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

from server import instance as installation
from server.as_owner import as_owner_of
from server.config import BadConfig, Config
from server.ctl.recorded import witness
from server.ctl.words import Commands, command, tell
from server.keeper import mounts

_STORE = "store.db"
_COPY_SECONDS = 4 * 3600


def add_to(commands: Commands) -> None:
    backup = command(
        commands,
        "backup",
        "copy the store, the audit and the installation's id to a new directory",
        _backup,
        "instance.backup",
    )
    backup.add_argument("directory", type=Path)
    backup.add_argument(
        "--volumes", action="store_true", help="workspaces and snapshots too; after `sandboxctl unmount`"
    )
    restore = command(
        commands,
        "restore",
        "make a state directory from a backup; there must be none yet",
        _restore,
        "instance.restore",
    )
    restore.add_argument("directory", type=Path)


def _backup(config: Config, arguments: argparse.Namespace) -> None:
    installation.load(config)
    place: Path = arguments.directory
    if place.exists():
        raise BadConfig(f"{place} is there already: a backup gets a directory of its own")
    if arguments.volumes and mounts.filesystem_of(config.volumes_dir) is not None:
        raise BadConfig("workspaces are in use: stop both processes, then close-all and unmount")
    place.mkdir(mode=0o700, parents=True)
    for database in (config.store_path, config.audit_path):
        if database.exists():
            _copy_database(database, place / database.name)
    for path in _others(config, arguments.volumes):
        _copy(path, place / path.name)
    tell(arguments, {"directory": str(place)}, str(place))


def _restore(config: Config, arguments: argparse.Namespace) -> None:
    place: Path = arguments.directory
    if (config.state / "instance").exists():
        raise BadConfig(
            f"{config.state} is in use: restore into a directory that is not there, or move it away"
        )
    if not (place / _STORE).is_file() or not (place / "instance").is_file():
        raise BadConfig(f"{place} is no backup: it has no {_STORE} or no instance")
    config.store_path.parent.mkdir(parents=True, exist_ok=True)
    for database in (config.store_path, config.audit_path):
        _copy(place / database.name, database)
    for path in _others(config, volumes=True):
        if (place / path.name).exists():
            _copy(place / path.name, path)
    installation.prepare(config)
    _hand_over(config.state / "instance", installation.web_owner(config).gid)
    witness(config, anew=True)
    tell(arguments, {"state": config.state_dir}, config.state_dir)


def _others(config: Config, volumes: bool) -> list[Path]:
    """What lies beside the store. Without its volumes, which storage there was is of no use."""
    paths = [config.state / "instance"]
    paths += [config.storage_note, config.storage_image] if volumes else []
    return [path for path in paths if path.exists() or volumes]


def _copy_database(source: Path, target: Path) -> None:
    """The source is read as its owner, who may not reach the copy: that is open, and needs no journal."""
    target.touch(mode=0o600)
    with contextlib.closing(sqlite3.connect(target)) as copy:
        copy.execute("PRAGMA journal_mode=OFF")
        with as_owner_of(source.parent), contextlib.closing(sqlite3.connect(source)) as database:
            database.backup(copy)


def _copy(source: Path, target: Path) -> None:
    """For nobody else to read, from the first byte on. `cp` keeps holes, and shares blocks where it can."""
    if not source.exists():
        return
    target.touch(mode=0o600)
    program = [shutil.which("cp") or "cp", "--sparse=auto", "--reflink=auto", "--", str(source), str(target)]
    subprocess.run(program, check=True, timeout=_COPY_SECONDS)


def _hand_over(path: Path, gid: int) -> None:
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 0, gid)
