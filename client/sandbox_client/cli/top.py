"""`sandbox top`: what open sessions use now, or what one of them used lately."""

from __future__ import annotations

import argparse
import contextlib

from ..client import SandboxClient
from ..errors import SessionEnded, SessionNotFound
from ..usage import SessionMetrics, UsageSample
from . import output
from .arguments import Subcommands

_LATELY = 600.0
_NOW = ("SESSION", "CPUS", "OF", "MEMORY", "OF", "DISK", "OF", "PROCESSES")
_OVER_TIME = ("AGO", "CPUS", "MEMORY", "PEAK", "DISK", "PROCESSES")


def add(commands: Subcommands) -> None:
    top = commands.add("top", "show what open sessions use, or what one used in the last minutes", show)
    top.add_argument("session", metavar="SESSION", nargs="?", help="only this session, with its samples")
    top.add_argument("--json", action="store_true", help="print JSON")


def show(args: argparse.Namespace) -> int:
    if args.session:
        found = [SandboxClient.attach(args.session, **args.server).metrics(_LATELY)]
    else:
        found = _all(args)
    if args.json:
        output.print_json(found)
    elif args.session:
        output.print_table(_OVER_TIME, (_row(one) for one in (*found[0].samples, found[0].now)))
    else:
        output.print_table(_NOW, map(_line, found))
    return 0


def _all(args: argparse.Namespace) -> list[SessionMetrics]:
    found = []
    for session in SandboxClient(**args.server).list_sessions():
        with contextlib.suppress(SessionEnded, SessionNotFound):  # it ended meanwhile
            found.append(SandboxClient.attach(session.session_id, **args.server).metrics(0))
    return found


def _row(sample: UsageSample) -> tuple[str, ...]:
    sizes = map(output.size, (sample.memory, sample.memory_peak, sample.disk_used))
    return output.span(sample.at), _cpus(sample.cpus), *sizes, str(sample.processes or "-")


def _line(one: SessionMetrics) -> tuple[str, ...]:
    now = one.now
    sizes = map(output.size, (now.memory, one.memory_limit, now.disk_used, one.disk_limit))
    limit = f"{one.cpus_limit or 0:g}"
    return one.session_id, _cpus(now.cpus), limit, *sizes, str(now.processes or "-")


def _cpus(count: float | None) -> str:
    return "-" if count is None else f"{count:.2f}"
