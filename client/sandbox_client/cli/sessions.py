"""Which session a command is about, and the commands about sessions: ls, ps, pause, resume and kill."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator

from ..client import SandboxClient
from ..uploads import is_id
from . import output
from .arguments import Subcommands, Usage

# Options of a fresh session, by their names in SandboxClient.
FRESH = {
    "image": "--image",
    "memory": "--memory",
    "cpus": "--cpus",
    "disk": "--disk",
    "workspace": "--workspace",
    "persist": "--persist",
    "snapshot": "--snapshot",
    "checkpoint": "--checkpoint",
    "datasets": "--dataset",
    "files": "--file",
    "wait": "--wait",
    "ephemeral": "--ephemeral",
}


def add_session_options(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--session", metavar="SESSION", help="use this session (default: a fresh one)")
    which.add_argument("--user", metavar="USER", help="use this user's session; it stays afterwards")
    parser.add_argument("--image", metavar="IMAGE", help="image of a fresh session")
    parser.add_argument("--memory", metavar="SIZE", help="memory of a fresh session, such as 512m")
    parser.add_argument("--cpus", metavar="N", type=float, help="CPUs of a fresh session, such as 0.5")
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=float,
        help="wait in line for a fresh session where there is no place",
    )
    parser.add_argument("--disk", metavar="SIZE", help="disk of a fresh session, such as 2g")
    parser.add_argument("--workspace", metavar="NAME", help="keep its files under this name, or go on there")
    parser.add_argument("--persist", action="store_true", default=None, help="with --user: keep the files")
    parser.add_argument("--snapshot", metavar="SNAPSHOT", help="begin with the files of a snapshot")
    parser.add_argument(
        "--checkpoint", action="store_true", default=None, help="keep its files before each execution"
    )
    parser.add_argument(
        "--dataset", metavar="NAME", dest="datasets", action="append", help="mount this at /data; repeatable"
    )
    parser.add_argument(
        "--file", metavar="FILE", dest="files", action="append", help="put this into /workspace; repeatable"
    )


@contextlib.contextmanager
def session(args: argparse.Namespace) -> Iterator[SandboxClient]:
    """The session that was asked for. Only a fresh one is closed afterwards."""
    wishes = {name: wish for name in FRESH if (wish := getattr(args, name, None)) is not None}
    if args.session and wishes:
        raise Usage(f"{FRESH[next(iter(wishes))]} is for a fresh session, not with --session")
    for file in args.files or ():
        if not is_id(file) and not os.path.isfile(file):
            raise Usage(f"--file: there is no file {file}")
    if args.session:
        with SandboxClient.attach(args.session, **args.server) as sandbox:
            yield sandbox
    elif args.user:
        yield SandboxClient(user_id=args.user, **wishes, **args.server)  # not left, so it stays
    else:
        with SandboxClient(**wishes, **args.server) as sandbox:
            yield sandbox


def add(commands: Subcommands) -> None:
    ls = commands.add("ls", "list open sessions", list_sessions)
    ls.add_argument("--user", metavar="USER", help="only this user's")
    shape = ls.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="print JSON")
    shape.add_argument("-q", "--quiet", action="store_true", help="print only the ids")

    ps = commands.add("ps", "list what runs in a session, and what ran lately", list_executions)
    ps.add_argument("session", metavar="SESSION")
    ps.add_argument("--json", action="store_true", help="print JSON")

    pause = commands.add("pause", "freeze a session; using it wakes it", put_to_sleep)
    pause.add_argument("session", metavar="SESSION")
    pause.add_argument("--cold", action="store_true", help="give up its sandbox, too: what runs in it ends")

    resume = commands.add("resume", "wake a session, as using it does", wake)
    resume.add_argument("session", metavar="SESSION")

    kill = commands.add("kill", "end an execution, or a session with all that is in it", end)
    kill.add_argument("session", metavar="SESSION")
    kill.add_argument("execution", metavar="EXECUTION", nargs="?", help="only this execution")
    kill.add_argument("-s", "--signal", metavar="SIGNAL", help="only send it this signal, such as SIGINT")


def list_sessions(args: argparse.Namespace) -> int:
    found = SandboxClient(**args.server).list_sessions(user_id=args.user)
    if args.json:
        output.print_json(found)
    elif args.quiet:
        print("".join(f"{one.session_id}\n" for one in found), end="")
    else:
        headings = ("SESSION", "USER", "IMAGE", "STATE", "MEMORY", "CPUS", "AGE", "EXPIRES IN")
        output.print_table(
            headings,
            (
                (
                    one.session_id,
                    one.user_id or "-",
                    one.image or "-",
                    one.state or "-",
                    output.size(one.memory),
                    f"{one.cpus or 0:g}",
                    output.span(one.created_at),
                    output.span(one.expires_at),
                )
                for one in found
            ),
        )
    return 0


def put_to_sleep(args: argparse.Namespace) -> int:
    SandboxClient.attach(args.session, **args.server).pause(cold=args.cold)
    return 0


def wake(args: argparse.Namespace) -> int:
    SandboxClient.attach(args.session, **args.server).resume()
    return 0


def list_executions(args: argparse.Namespace) -> int:
    found = SandboxClient.attach(args.session, **args.server).executions()
    if args.json:
        output.print_json(found)
        return 0
    headings = ("EXECUTION", "STATUS", "STARTED", "TIME", "CPU", "OUTPUT", "COMMAND")
    output.print_table(
        headings,
        (
            (
                one.execution_id,
                f"{one.status} ({one.exit_code})" if one.exit_code is not None else one.status or "-",
                f"{output.span(one.started_at)} ago",
                output.span(one.started_at, one.ended_at),
                f"{one.cpu_seconds:.1f}s",
                output.size(one.stdout_bytes + one.stderr_bytes),
                one.command,
            )
            for one in found
        ),
    )
    return 0


def end(args: argparse.Namespace) -> int:
    sandbox = SandboxClient.attach(args.session, **args.server)
    if args.execution is not None and args.signal is not None:
        sandbox.execution(args.execution).signal(args.signal)
    elif args.execution is not None:
        sandbox.execution(args.execution).kill()
    elif args.signal is not None:
        raise Usage("--signal needs an EXECUTION")
    else:
        sandbox.info()  # closing is content with a session that is not there; a person wants to know
        sandbox.close()
    return 0
