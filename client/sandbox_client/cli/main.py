"""The program as a whole: reads the arguments, runs a command, turns what goes wrong into an exit code."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from ..errors import SandboxError
from . import completion, copying, files, kept, run, sessions, shell, top
from .arguments import Subcommands, Usage, new_parser
from .output import complain


def parser() -> argparse.ArgumentParser:
    """Every command and option there is."""
    tree = new_parser()
    commands = Subcommands(tree)
    for module in (run, shell, copying, files, sessions, top, kept):
        module.add(commands)
    completion.add(commands, tree)
    return tree


def main(arguments: Sequence[str] | None = None) -> int:
    _fill_in_streams()
    args = parser().parse_args(arguments)
    args.server = {"url": getattr(args, "url", None), "api_key": getattr(args, "api_key", None)}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup it stays ignored
            signal.signal(number, _leave)
    try:
        return _run(args)
    except SandboxError as error:
        complain(error)
        return int(args.failure)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        _drop_output()  # who read it has gone, as after `| head`
        return 128 + signal.SIGPIPE
    except OSError as error:
        _drop_output()
        complain(f"the output cannot be written: {error}")
        return int(args.failure)


def _run(args: argparse.Namespace) -> int:
    try:
        code: int = args.run(args)
    except Usage as error:
        args.parser.error(str(error))  # exits
    sys.stdout.flush()  # while a broken pipe can still be told
    return code


def entry() -> NoReturn:
    sys.exit(main())


def _drop_output() -> None:
    """Python flushes once more at exit: let that go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fill_in_streams() -> None:
    """A program may be started without stdout or stderr: what it says then goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # for as long as the program runs


def _leave(number: int, frame: object) -> NoReturn:
    """Leave in an orderly way: terminals are restored and fresh sessions closed on the way out."""
    raise SystemExit(128 + number)
