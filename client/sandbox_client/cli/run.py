"""`sandbox run`: a command in a sandbox as if it ran here: its output, its exit code, our stdin, Ctrl-C."""

from __future__ import annotations

import argparse
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterable
from typing import BinaryIO

from ..client import Execution, SandboxClient
from ..commands import PIPE, Pipe
from ..errors import ExecutionEnded, NoStdin, SandboxError, StdinFull
from ..events import Event
from ..results import ExecutionResult
from .arguments import NOT_RUN, Subcommands, Usage
from .output import complain
from .sessions import add_session_options, session

CHUNK = 64 * 1024

EPILOG = """\
One word is a text for the shell; several are a program and its arguments, taken as they are. Options of
`sandbox run` stand before the command. Ctrl-C kills the command.
"""


def add(commands: Subcommands) -> None:
    parser = commands.add("run", "run a command in a sandbox", run, failure=NOT_RUN, epilog=EPILOG)
    add_session_options(parser)
    parser.add_argument("--timeout", metavar="SECONDS", type=float, help="kill it after so long")
    parser.add_argument("--cwd", metavar="DIR", help="directory to run it in")
    parser.add_argument(
        "--env", metavar="NAME=VALUE", type=_pair, action="append", help="a variable for it; may be repeated"
    )
    parser.add_argument(
        "--ephemeral",
        action="store_true",
        default=None,
        help="in a session that the server ends with the command",
    )
    parser.add_argument("command", metavar="COMMAND", help="what to run")
    parser.add_argument("arguments", metavar="ARG", nargs=argparse.REMAINDER, help="its arguments")


def run(args: argparse.Namespace) -> int:
    if args.ephemeral:
        return _run_alone(args)
    with session(args) as sandbox:
        execution = _start(sandbox, args)
        try:
            return _attend(execution)
        except (KeyboardInterrupt, SystemExit, OSError):  # the last: nobody takes its output
            execution.kill()
            raise


def _run_alone(args: argparse.Namespace) -> int:
    """Its input is sent with it, as a whole; if we are killed, the server ends it all the same."""
    if args.session or args.user:
        raise Usage("--ephemeral is for a fresh session, not with --session or --user")
    with session(args) as sandbox:
        events = sandbox.stream(
            [args.command, *args.arguments] if args.arguments else args.command,
            kill_on_disconnect=True,
            cwd=args.cwd,
            env=dict(args.env) if args.env else None,
            timeout=args.timeout,
            stdin=sys.stdin.buffer.read() if _stdin() is not None else None,
        )
        return _shown(events, lambda: False)


def _start(sandbox: SandboxClient, args: argparse.Namespace) -> Execution:
    execution = sandbox.start(
        [args.command, *args.arguments] if args.arguments else args.command,
        shell=None if args.arguments else "main",
        cwd=args.cwd,
        env=dict(args.env) if args.env else None,
        timeout=args.timeout,
        stdin=_stdin(),
    )
    return execution


def _attend(execution: Execution) -> int:
    feeder = Feeder(execution)
    if _stdin() is not None:
        feeder.start()
    return _shown(execution.events(), lambda: feeder.failed)


def _shown(events: Iterable[Event], has_failed: Callable[[], bool]) -> int:
    """The exit code for all that was shown."""
    whole = True
    for event in events:
        _show(event)
        whole = whole and not event.missing
        if event.result is not None:
            _explain(event.result)
            if has_failed():
                return NOT_RUN
            return event.result.exit_code or (0 if whole else NOT_RUN)  # half an output is no success
    return NOT_RUN


def _show(event: Event) -> None:
    if event.missing:
        complain(f"{event.missing} bytes of output came too fast and are not kept")
    elif event.data:
        stream: BinaryIO = sys.stderr.buffer if event.kind == "stderr" else sys.stdout.buffer
        stream.write(event.data)
        stream.flush()


def _explain(result: ExecutionResult) -> None:
    if result.timed_out or result.oom_killed or result.cancelled:
        complain(result.summary)  # the event's result has no output, so this is only how it ended


def _stdin() -> Pipe | None:
    """A file, pipe or socket is passed on. A terminal is not: typing is for `sandbox shell`."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:  # closed
        return None
    return PIPE if stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None


class Feeder(threading.Thread):
    """Passes our stdin on for as long as the command takes it. Does not hold up our own exit."""

    def __init__(self, execution: Execution) -> None:
        super().__init__(daemon=True)
        self.failed = False
        self._execution = execution

    def run(self) -> None:
        try:
            while chunk := os.read(0, CHUNK):
                self._send(chunk)
            self._execution.close_input()
        except (ExecutionEnded, NoStdin):
            pass  # it has read all it wanted
        except (SandboxError, OSError) as error:
            # Half an input must not pass for a whole one.
            self.failed = True
            complain(f"stdin broke off: {error}")
            self._execution.kill()

    def _send(self, chunk: bytes) -> None:
        while True:
            try:
                return self._execution.send_input(chunk)
            except StdinFull:
                continue  # it takes its time, and so do we


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
