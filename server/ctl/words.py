"""How commands answer: for a person, or as JSON for a program; and how times and durations are given."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

Commands = Any  # what argparse's add_subparsers gives; its class has no public name

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def command(
    commands: Commands, name: str, meaning: str, run: Any, act: str | None = None
) -> argparse.ArgumentParser:
    """A subcommand that can also answer in JSON. What changes something has a name in the audit, `act`."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=meaning, description=meaning)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run, act=act)
    return parser


def group(commands: Commands, name: str, meaning: str) -> Commands:
    parser = commands.add_parser(name, help=meaning, description=meaning)
    return parser.add_subparsers(required=True, metavar="COMMAND")


def seconds(text: str) -> float:
    """`90`, `90s`, `15m`, `12h` or `30d`."""
    match = re.fullmatch(r"(\d{1,9})([smhd]?)", text)
    if match is None:
        raise argparse.ArgumentTypeError("must be a number of seconds, or such as 15m, 12h or 30d")
    return float(match[1]) * _UNITS[match[2]]


def lifetime(text: str) -> float:
    """The same, but some time at least."""
    if (found := seconds(text)) < 1:
        raise argparse.ArgumentTypeError("must be a second at least")
    return found


def tell(arguments: argparse.Namespace, facts: Any, plain: str) -> None:
    print(json.dumps(facts) if arguments.json else plain)


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as what is in them; `-` for what there is not."""
    lines = [[str("-" if cell in (None, "") else cell) for cell in row] for row in (heads, *rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def fail(arguments: argparse.Namespace, code: str, detail: str) -> NoReturn:
    """One line to stderr, and exit code 1."""
    asked_json = getattr(arguments, "json", False)
    print(
        json.dumps({"code": code, "detail": detail}) if asked_json else f"sandboxctl: {detail}",
        file=sys.stderr,
    )
    sys.exit(1)
