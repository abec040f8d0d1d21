"""The state directory as `sandboxctl init` makes it, and what it puts right in one that is there."""

from __future__ import annotations

import os
import pwd
from dataclasses import replace
from pathlib import Path

import pytest

from server import instance as installation
from server.config import Config

WEB = pwd.getpwnam("nobody")


@pytest.fixture
def config(config: Config) -> Config:
    return replace(config, web_user=WEB.pw_name)


def owners_below(place: Path) -> dict[Path, tuple[int, int]]:
    found = [place, *place.rglob("*")]
    return {path: (os.lstat(path).st_uid, os.lstat(path).st_gid) for path in found}


def test_a_spoilt_owner_and_mode_of_the_instance_file_are_put_right(config: Config) -> None:
    """As systemd leaves it where a unit names a StateDirectory: the web cannot read it."""
    before = installation.prepare(config)
    file = config.state / "instance"
    os.chown(file, 0, 0)
    file.chmod(0o600)
    assert installation.prepare(config) == before
    told = file.stat()
    assert (told.st_uid, told.st_gid, told.st_mode & 0o777) == (0, WEB.pw_gid, 0o640)


def test_the_top_keeps_its_group_and_lets_the_web_pass(config: Config) -> None:
    os.chown(config.state, 0, 4242)
    installation.prepare(config)
    told = config.state.stat()
    assert (told.st_uid, told.st_gid, told.st_mode & 0o777) == (0, 4242, 0o711)


def test_files_of_workspaces_keep_their_owners(config: Config) -> None:
    installation.prepare(config)
    files = config.volumes_dir / "1" / "files"
    files.mkdir(parents=True)
    (files / "precious").touch()
    for path in (files, files / "precious"):
        os.chown(path, 1000, 1000)
    before = owners_below(config.volumes_dir)
    installation.prepare(config)
    assert owners_below(config.volumes_dir) == before
