"""The tree of commands and options that argparse reads."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ..version import __version__

PROBLEM = 1
NOT_RUN = 125  # as docker has it: no command exits with it by itself

DESCRIPTION = "Isolated sandboxes on your own server, from the command line."
EXAMPLES = """\
examples:
  sandbox run 'echo hello from $(whoami)'     in a fresh session, closed afterwards
  sandbox run --user ada --timeout 60 make    in Ada's session, which stays
  tar c . | sandbox run 'tar x && ls'         stdin is passed on
  sandbox cp data.csv SESSION:                a file or directory to a sandbox, or from one
  sandbox shell                               a terminal; Enter ~ . leaves it
  sandbox ls; sandbox ps SESSION              what is open, what runs
  sandbox top                                 what open sessions use
  sandbox kill SESSION                        end it
  source <(sandbox completion bash)           completion; zsh and fish too

The server and the key come from --url and --api-key, else SANDBOX_URL and SANDBOX_API_KEY, else what
quickstart wrote. Other users of this machine can see a key among the arguments: prefer the environment.

exit codes:
  run, shell  that of the command; 125 if it could not be run or followed, 130 after Ctrl-C
  others      0, or 1 for a problem
  all         2 for wrong usage
"""


class Usage(Exception):
    """The arguments do not fit together."""


class Subcommands:
    """The commands of the program; each is a function of the parsed arguments that gives the exit code."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(
        self,
        name: str,
        help: str,
        run: Callable[[argparse.Namespace], int],
        failure: int = PROBLEM,
        epilog: str | None = None,
    ) -> argparse.ArgumentParser:
        """A new command; `failure` is its exit code when the server or the way to it fails."""
        parser = self._parsers.add_parser(
            name,
            help=help,
            description=f"{help[0].upper()}{help[1:]}.",
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        parser.set_defaults(run=run, failure=failure, parser=parser)
        add_server_options(parser)
        return parser


def new_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sandbox",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"sandbox {__version__}")
    add_server_options(parser)
    return parser


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """They may stand before or behind the command: without defaults the second does not undo the first."""
    parser.add_argument("--url", metavar="URL", default=argparse.SUPPRESS, help="address of the server")
    parser.add_argument("--api-key", metavar="KEY", default=argparse.SUPPRESS, help="key for it")
