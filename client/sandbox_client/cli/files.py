"""`sandbox files`: look at a sandbox's files, print and remove them."""

from __future__ import annotations

import argparse
import sys

from ..file_errors import NotADirectory
from ..file_infos import FileInfo
from . import output
from .arguments import Subcommands, Usage
from .places import ONLY, remote_place

DEEPEST = 64

EPILOG = f"""\
PLACE is SESSION:PATH, by default below /workspace. {ONLY}

  sandbox files ls SESSION:             what is in /workspace
  sandbox files cat SESSION:notes.txt
  sandbox files rm -r SESSION:build
"""


def add(commands: Subcommands) -> None:
    parser = commands.add("files", "list, print or remove files of a sandbox", files, epilog=EPILOG)
    parser.add_argument("verb", metavar="VERB", choices=tuple(VERBS), help="ls, cat or rm")
    parser.add_argument("place", metavar="PLACE", type=remote_place, help="SESSION:PATH")
    parser.add_argument("-r", "--recursive", action="store_true", help="ls, rm: with all that is below")
    parser.add_argument("--json", action="store_true", help="ls: print JSON")


def files(args: argparse.Namespace) -> int:
    if args.json and args.verb != "ls":
        raise Usage("--json is for ls")
    return VERBS[args.verb](args)


def ls(args: argparse.Namespace) -> int:
    of = args.place.sandbox(args).files
    try:
        found = of.list(args.place.path, depth=DEEPEST if args.recursive else 1)
    except NotADirectory:
        found = [of.stat(args.place.path)]
    if args.json:
        output.print_json(found)
        return 0
    rows = ((one.mode, output.size(one.size), _when(one), _name(one)) for one in found)
    output.print_table(("MODE", "SIZE", "MODIFIED", "PATH"), rows)
    return 0


def cat(args: argparse.Namespace) -> int:
    for piece in args.place.sandbox(args).files.read_stream(args.place.path):
        sys.stdout.buffer.write(piece)
    return 0


def rm(args: argparse.Namespace) -> int:
    args.place.sandbox(args).files.delete(args.place.path, recursive=args.recursive)
    return 0


def _when(one: FileInfo) -> str:
    return f"{output.span(one.modified_at)} ago"


def _name(one: FileInfo) -> str:
    if one.is_link:
        return f"{one.path} -> {one.target}"
    return f"{one.path}/" if one.is_directory else one.path


VERBS = {"ls": ls, "cat": cat, "rm": rm}
