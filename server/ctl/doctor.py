"""`sandboxctl doctor`: is this installation as it should be, and what is to be done?

The keeper examines: it alone can open sandboxes. Where it does not answer, that is the first finding, and
the rest is looked at from here, with what is loaded only then: other commands are quicker without it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from server import instance as installation
from server.config import BadConfig, Config
from server.ctl.words import Commands, command, tell
from server.errors import SandboxError
from server.keeper.doctor import CRITICAL, Finding
from server.keeper.doctor.grading import EXIT_CODES, as_text, finding_of, report
from server.keeper_client import KeeperClient


def add_to(commands: Commands) -> None:
    meaning = (
        "examine this installation; the exit code is 0 for the grades A and B, 3 for C, 4 for D, 5 for F"
    )
    doctor = command(commands, "doctor", meaning, _doctor)
    doctor.add_argument("--url", help="where the world reaches the server: examine that way too")


def _doctor(config: Config, arguments: argparse.Namespace) -> None:
    outside = _outside(arguments.url) if arguments.url is not None else []
    told = report([*_by_keeper(config), *outside])
    tell(arguments, told, as_text(told))
    sys.exit(EXIT_CODES[told["grade"]])


def _outside(url: str) -> list[Finding]:
    from server.keeper.doctor.public import Door, examine

    try:
        door = Door.at(url, os.environ.get("SANDBOX_API_KEY", ""))
    except ValueError as exc:
        raise BadConfig(f"--url {exc}") from exc
    return list(examine(door, time.time()))


def _by_keeper(config: Config) -> list[Finding]:
    try:
        with KeeperClient(config.keeper_socket) as keeper:
            told = keeper.doctor()
    except SandboxError as exc:
        advice = "systemctl start sandbox-keeper (or ./quickstart.sh), and look at its log"
        return [Finding("keeper.answers", CRITICAL, exc.detail, "an answer", advice), *_from_here(config)]
    return [finding_of(one) for one in told["findings"]]


def _from_here(config: Config) -> list[Finding]:
    from server.keeper.doctor.examination import on_host
    from server.keeper.runtime import RuntimeFailed
    from server.keeper.runtime.docker import DockerRuntime

    instance, owner = installation.load(config), installation.web_owner(config)
    try:
        runtime = DockerRuntime(config, instance.id, owner.gid)
    except RuntimeFailed:
        return list(on_host(config, None))
    return list(on_host(config, runtime))
