"""The guest's word for each reason why a command cannot be run or reached."""

from __future__ import annotations

import subprocess

from .executions import Conflict, Forgotten, TooManyExecutions, Unknown
from .processes import CannotStart, NoSuchDirectory
from .refused import Refused
from .shells import ShellBusy, TooManyShells
from .stdin import NoTerminal, StdinClosed, StdinFull

_REFUSALS: dict[type[Exception], str] = {
    TooManyExecutions: "too_many_executions",
    TooManyShells: "too_many_shells",
    ShellBusy: "shell_busy",
    Conflict: "execution_conflict",
    Forgotten: "result_forgotten",
    Unknown: "execution_not_found",
    StdinFull: "stdin_full",
    StdinClosed: "no_stdin",
    NoTerminal: "no_terminal",
    NoSuchDirectory: "no_such_directory",
    CannotStart: "cannot_start",
    subprocess.SubprocessError: "cannot_start",  # a terminal could not be had, for instance
    RuntimeError: "too_many_executions",  # no room for a thread
    OSError: "cannot_start",  # no room for a pipe or the command's text
}
REFUSALS = tuple(_REFUSALS)


def code_of(refusal: Exception) -> str:
    if isinstance(refusal, Refused):
        return refusal.code
    return next((code for kind, code in _REFUSALS.items() if isinstance(refusal, kind)), "cannot_start")
