"""One command as it is asked for, and what came of it. The words both `oneoff` and `kept` speak."""

from __future__ import annotations

import os
import signal
from typing import Any

from .capture import Output
from .control import Control
from .protocol import Body
from .usage import Usage

TIMED_OUT_CODE = 124
_NOTHING_USED = Usage(0.0, None)


class Work:
    """A command with everything it needs.

    `stdin` None means an empty one, unless `open_stdin` says that more may come through `control`. `screen`
    is the size of the terminal that it shall have, in columns and rows.
    """

    def __init__(
        self,
        command: str | list[str],
        timeout: float,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        stdin: Body | None = None,
        open_stdin: bool = False,
        screen: tuple[int, int] | None = None,
        control: Control | None = None,
    ) -> None:
        self.command = command
        self.timeout = timeout
        self.cwd = cwd
        self.env = env or {}
        self.stdin = stdin
        self.open_stdin = open_stdin
        self.screen = screen
        self.control = control or Control()


class Outcome:
    """What a command came to. `details` holds what only an interpreter can tell: a value, an error."""

    def __init__(
        self,
        output: Output,
        cwd: str,
        exit_code: int = 0,
        signal: str | None = None,
        timed_out: bool = False,
        restarted: bool = False,
        details: dict[str, Any] | None = None,
        usage: Usage = _NOTHING_USED,
    ) -> None:
        self.output = output
        self.cwd = cwd
        self.exit_code = exit_code
        self.signal = signal
        self.timed_out = timed_out
        self.restarted = restarted
        self.details = details or {}
        self.usage = usage


def decode_status(status: int) -> tuple[int, str | None]:
    """A wait status as bash would give it, and the signal's name if there was one."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return 128 + number, signal_name(number)
    return os.WEXITSTATUS(status), None


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
