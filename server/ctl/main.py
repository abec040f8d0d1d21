"""The program `sandboxctl`: reads its arguments, and tells in one line why something could not be done.

Exit codes: 0 done, 1 refused or failed, 2 wrong arguments; `status` adds 3, `doctor` 3 to 5.
"""

from __future__ import annotations

import argparse
import os

from server import config as configuration
from server import ctl
from server.config import BadConfig
from server.ctl import audit, backups, doctor, example, installation, keys, status, sysctl, tenants, usage
from server.ctl.recorded import recorded
from server.ctl.words import fail
from server.errors import SandboxError

# Each has `add_to(commands)`, which adds its subcommands; each subcommand sets `run(config, arguments)`.
COMMANDS = (installation, tenants, keys, usage, audit, status, doctor, sysctl, backups, example)


def main(argv: list[str] | None = None) -> None:
    arguments = _parser().parse_args(argv)
    try:
        config = configuration.load(os.environ)
        with recorded(config, arguments):
            arguments.run(config, arguments)
    except BadConfig as exc:
        fail(arguments, "bad_config", str(exc))
    except SandboxError as exc:
        fail(arguments, exc.code, exc.detail)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sandboxctl",
        description=ctl.__doc__,
        epilog="Settings are read from SANDBOX_* variables, as the server reads them.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.add_to(commands)
    return parser
