"""`sandboxctl sysctl`: raise the kernel settings that the wall counts on, until the next reboot.

The keeper's unit does so before each start. A file in /etc/sysctl.d would lower what is higher already.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from server.config import Config
from server.ctl.words import Commands, command
from server.keeper.doctor.kernel import SYSCTLS, read_setting, setting_path

_PROC = Path("/")


def add_to(commands: Commands) -> None:
    meaning = "raise the kernel settings that sandboxes count on, until the next reboot; none is ever lowered"
    command(commands, "sysctl", meaning, _sysctl)


def _sysctl(_: Config, arguments: argparse.Namespace) -> None:
    """A line for each, or nothing at all: quickstart reads it."""
    raised = [{"name": name, "before": before, "now": now} for name, before, now in raise_all(_PROC)]
    if arguments.json:
        print(json.dumps({"raised": raised}))
        return
    for one in raised:
        print(*one.values())


def raise_all(root: Path) -> Iterator[tuple[str, int, int]]:
    """Name, value before and value now of each that was too low. What cannot be written is said, and left."""
    for name, least, _ in SYSCTLS:
        before = read_setting(root, name)
        if before is None or before >= least:
            continue
        try:
            setting_path(root, name).write_text(f"{least}\n")
        except OSError as exc:
            print(f"sandboxctl: {name} stays at {before}: {exc.strerror}", file=sys.stderr)
        else:
            yield name, before, least
