"""What a guest's words for refusals mean to callers. A word that nobody knows is a refusal, and no more."""

from __future__ import annotations

from collections.abc import Callable

from server import errors

SESSION_STREAMS = 64  # callers who may wait for something of one session at once; the guest has room for more


def refusal_of(code: str, executions_max: int) -> errors.SandboxError:
    if code == "no_such_directory":
        return errors.NoSuchDirectory(
            "cwd", "The directory does not exist in the sandbox, or may not be entered."
        )
    if code == "too_many_executions":
        return errors.TooManyExecutions(executions_max, "session")
    if code in _REFUSALS:
        return _REFUSALS[code]()
    return errors.GuestUnavailable("The sandbox could not start the command. Nothing was run.")


_REFUSALS: dict[str, Callable[[], errors.SandboxError]] = {
    "too_many_shells": lambda: errors.TooManyShells(16),
    "too_many_streams": lambda: errors.TooManyStreams(SESSION_STREAMS, "session"),
    "shell_busy": errors.ShellBusy,
    "execution_conflict": errors.ExecutionExists,
    "execution_not_found": errors.ExecutionNotFound,
    "execution_ended": errors.ExecutionEnded,
    "not_begun": errors.NotBegun,
    "no_stdin": errors.NoStdin,
    "stdin_full": errors.StdinFull,
    "no_terminal": errors.NoTerminal,
    "result_forgotten": errors.ResultForgotten,
}
