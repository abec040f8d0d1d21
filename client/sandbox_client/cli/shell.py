"""`sandbox shell`: a session's terminal in one's own."""

from __future__ import annotations

import argparse
import os

from .. import credentials
from ..errors import ConfigurationError
from . import screen
from .arguments import NOT_RUN, Subcommands, Usage
from .output import complain
from .sessions import add_session_options, session

EPILOG = """\
Enter ~ . leaves the terminal, Enter ~ ? tells more. In a session that stays (--session, --user) the shell
goes on then, and the same command joins it again. --name opens another one.
"""


def add(commands: Subcommands) -> None:
    parser = commands.add("shell", "open a terminal in a sandbox", shell, failure=NOT_RUN, epilog=EPILOG)
    add_session_options(parser)
    parser.add_argument("--name", metavar="NAME", default="main", help="which terminal of the session")


def shell(args: argparse.Namespace) -> int:
    if not screen.is_terminal():
        raise Usage("a shell needs a terminal for stdin and stdout; use `sandbox run` without one")
    try:
        from .visit import Visit
    except ImportError as exc:
        raise ConfigurationError(f"A shell needs websocket-client ({exc}): pip install it.") from exc
    found = credentials.find(args.server["url"], args.server["api_key"], os.environ)
    with session(args) as sandbox:
        session_id = sandbox.session_id
        with screen.raw() as own:
            over = Visit(own, found, session_id, args.name).stay()
        if over.exit_code is None:
            complain(over.reason)
        return over.exit_code or 0
