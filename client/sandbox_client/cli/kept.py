"""The commands about what is kept: snapshots, restore, undo, fork and workspaces."""

from __future__ import annotations

import argparse

from ..client import SandboxClient
from . import output
from .arguments import Subcommands


def add(commands: Subcommands) -> None:
    one = commands.add("snapshot", "keep a session's files as they are now, and print the id", snapshot)
    one.add_argument("session", metavar="SESSION")
    one.add_argument("--name", metavar="NAME", help="a name for people")

    many = commands.add("snapshots", "list snapshots", snapshots)
    many.add_argument("session", metavar="SESSION", nargs="?", help="only those of this session")
    _add_shape(many)
    many.add_argument("--delete", metavar="SNAPSHOT", help="delete this one instead")

    back = commands.add("restore", "go back to a snapshot, in the same session", restore)
    back.add_argument("session", metavar="SESSION")
    back.add_argument("snapshot", metavar="SNAPSHOT")

    before = commands.add("undo", "go back to before an execution, where checkpoints are kept", undo)
    before.add_argument("session", metavar="SESSION")
    before.add_argument("execution", metavar="EXECUTION", nargs="?", help="default: the last one")

    copies = commands.add("fork", "copy a session, and print the ids of the new ones, which stay", fork)
    copies.add_argument("session", metavar="SESSION")
    copies.add_argument("-n", "--count", metavar="N", type=int, default=1, help="how many (default: 1)")

    named = commands.add("workspaces", "list workspaces that outlive their sessions", workspaces)
    _add_shape(named)
    named.add_argument("--delete", metavar="NAME", help="delete this one instead, with all that is in it")


def snapshot(args: argparse.Namespace) -> int:
    print(_sandbox(args).snapshot(args.name).snapshot_id)
    return 0


def snapshots(args: argparse.Namespace) -> int:
    if args.delete is not None:
        SandboxClient(**args.server).delete_snapshot(args.delete)
        return 0
    found = _sandbox(args).snapshots() if args.session else SandboxClient(**args.server).list_snapshots()
    if args.json:
        output.print_json(found)
    elif args.quiet:
        print("".join(f"{one.snapshot_id}\n" for one in found), end="")
    else:
        rows = (
            (
                one.snapshot_id,
                one.session_id or "-",
                one.name or "-",
                one.kind,
                output.size(one.size),
                output.span(one.created_at),
                one.execution_id or "-",
            )
            for one in found
        )
        headings = ("SNAPSHOT", "SESSION", "NAME", "KIND", "SIZE", "AGE", "BEFORE EXECUTION")
        output.print_table(headings, rows)
    return 0


def restore(args: argparse.Namespace) -> int:
    _sandbox(args).restore(args.snapshot)
    return 0


def undo(args: argparse.Namespace) -> int:
    print(_sandbox(args).undo(args.execution).undone or "-")
    return 0


def fork(args: argparse.Namespace) -> int:
    for copy in _sandbox(args).fork(args.count):
        print(copy.session_id)
    return 0


def workspaces(args: argparse.Namespace) -> int:
    client = SandboxClient(**args.server)
    if args.delete is not None:
        client.delete_workspace(args.delete)
        return 0
    found = client.workspaces()
    if args.json:
        output.print_json(found)
    elif args.quiet:
        print("".join(f"{one.name}\n" for one in found), end="")
    else:
        rows = (
            (
                one.name,
                output.size(one.size),
                output.span(one.created_at),
                f"{output.span(one.last_used_at)} ago",
                one.session_id or "-",
            )
            for one in found
        )
        output.print_table(("WORKSPACE", "SIZE", "AGE", "LAST USED", "SESSION"), rows)
    return 0


def _sandbox(args: argparse.Namespace) -> SandboxClient:
    return SandboxClient.attach(args.session, **args.server)


def _add_shape(parser: argparse.ArgumentParser) -> None:
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print JSON")
    shape.add_argument("-q", "--quiet", action="store_true", help="print only the ids or names")
