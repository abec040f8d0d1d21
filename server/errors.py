"""What can go wrong, as kinds with stable codes. No HTTP here: api/problems.py alone knows statuses.

SandboxError
|-- Invalid                 the request cannot be understood or is not allowed: change it
|   `-- NoSuchDirectory     the command's cwd does not exist
|-- Unauthorized            no key, or not a valid one
|-- SessionNotFound         not there, or not yours: the two are never told apart
|-- ExecutionNotFound       the session has no execution of that id
|-- ForbiddenOrigin         a page of another site wants a terminal
|-- IdempotencyConflict     the same key for something else
|-- ExecutionExists         the same execution id for something else
|-- ExecutionEnded          it is over: nothing can be sent to it
|-- NoStdin                 its stdin is not open
|-- NoTerminal              it runs on no terminal
|-- ResultForgotten         it ran under this key, but the result is no longer kept
|-- SessionEnded            the session is over; `cause` says why
|-- Limited                 a limit is reached: try later, or use less
|   |-- QuotaExceeded       a quota of a tenant, a user or a session
|   |   |-- TooManySessions
|   |   |-- TooManyExecutions
|   |   `-- TooManyStreams
|   |-- TooManyShells
|   |-- ShellBusy
|   `-- StdinFull
|       `-- NotBegun        it waits for its shell
`-- Unavailable             something behind us is not answering: a retry can help
    |-- KeeperUnavailable
    |-- EngineUnavailable
    |-- StoreUnavailable
    |-- GuestUnavailable
    |-- HostFull            the host has no memory left to promise
    `-- ServerBusy
"""

from __future__ import annotations

from typing import ClassVar


class SandboxError(Exception):
    """The root. `detail` is one sentence for the caller that says what to do."""

    code: ClassVar[str] = "internal_error"
    retryable: bool = False

    def __init__(self, detail: str, **extras: object) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extras = extras


class Invalid(SandboxError):
    """The request is not one we can carry out. `field` names what to change."""

    code = "invalid_request"

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(detail, field=field)


class NoSuchDirectory(Invalid):
    """The directory to run in does not exist, or may not be entered."""


class Unauthorized(SandboxError):
    """One answer for every way in which a key can be wrong."""

    code = "unauthorized"

    def __init__(self) -> None:
        super().__init__(
            "Send a valid key as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'. "
            "A ticket, where one is taken, must be fresh."
        )


class SessionNotFound(SandboxError):
    """There is no such session, or it is another tenant's."""

    code = "session_not_found"

    def __init__(self) -> None:
        super().__init__("There is no such session. Create one with POST /create_session.")


class ExecutionNotFound(SandboxError):
    """The session knows no execution of that id; it may be too old."""

    code = "execution_not_found"

    def __init__(self, cold_at: str | None = None) -> None:
        if cold_at is None:
            super().__init__(
                "The session has no such execution, or no longer. List them with GET .../executions."
            )
        else:
            super().__init__(
                f"The session has no such execution. It went cold at {cold_at}: what ran before is not kept.",
                cold_at=cold_at,
            )


class ForbiddenOrigin(SandboxError):
    """A browser asks on behalf of a page that is not ours."""

    code = "forbidden_origin"

    def __init__(self) -> None:
        super().__init__("Pages of this origin may not connect. The operator can add it to SANDBOX_ORIGINS.")


class ExecutionExists(SandboxError):
    """The id was used before, with another body."""

    code = "execution_exists"

    def __init__(self) -> None:
        super().__init__("This execution_id was used for a different command. Use a new one, or none.")


class ExecutionEnded(SandboxError):
    code = "execution_ended"

    def __init__(self) -> None:
        super().__init__("The execution has ended. GET it for its result.")


class NoStdin(SandboxError):
    code = "no_stdin"

    def __init__(self) -> None:
        super().__init__('Its stdin is not open: start it with "stdin": "pipe", and do not close it before.')


class NoTerminal(SandboxError):
    code = "no_terminal"

    def __init__(self) -> None:
        super().__init__('It does not run on a terminal: start it with "pty".')


class IdempotencyConflict(SandboxError):
    """The key was used before, with another body."""

    code = "idempotency_conflict"

    def __init__(self) -> None:
        super().__init__("This Idempotency-Key was used for a different request. Use a new key.")


class ResultForgotten(SandboxError):
    """The command has run under this Idempotency-Key, but its result is no longer kept."""

    code = "result_forgotten"

    def __init__(self) -> None:
        super().__init__(
            "This command has already run, but its result is no longer kept. It was not run again."
        )


class SessionEnded(SandboxError):
    """The session is over. Nothing brings it back: create another."""

    code = "session_ended"

    def __init__(self, cause: str, ended_at: str) -> None:
        super().__init__(
            f"The session has ended: {CAUSES[cause]} Create a new one with POST /create_session.",
            cause=cause,
            ended_at=ended_at,
        )


CAUSES = {
    "closed": "it was closed.",
    "expired": "its lease ran out.",
    "spent": "it was for one command, which has run.",
    "oom": "it ran out of memory as a whole. Ask for more memory, or use less.",
    "killed": "its container was killed from outside.",
    "engine_stopped": "a restart of the Docker Engine, or of the host, stopped its container.",
    "crashed": "its container stopped unexpectedly.",
    "lost": "its container no longer exists.",
}


class Limited(SandboxError):
    """A limit is reached. `retry_after` is a guess at when to try again, in seconds."""

    retryable = True
    retry_after: int = 1


class QuotaExceeded(Limited):
    """`limit` is the quota's name, `used` and `allowed` say where its owner stands, `scope` who that is."""

    code = "quota_exceeded"
    retry_after = 5

    def __init__(
        self, limit: str, used: float, allowed: float, scope: str = "tenant", detail: str | None = None
    ) -> None:
        words = (
            f"This {scope} may have {allowed:.10g} of '{limit}' and has {used:.10g}. Use less, or try later."
        )
        super().__init__(detail or words, limit=limit, used=used, allowed=allowed, scope=scope)


class TooManySessions(QuotaExceeded):
    code = "too_many_sessions"

    def __init__(self, used: int, allowed: int) -> None:
        detail = f"This tenant has {used} live sessions, as many as it may have. Close one first."
        super().__init__("sessions", used, allowed, detail=detail)


class TooManyExecutions(QuotaExceeded):
    code = "too_many_executions"
    retry_after = 1

    def __init__(self, allowed: int, scope: str) -> None:
        detail = (
            f"This {scope} runs or queues {allowed} commands already, as many as it may. Wait for one to end."
        )
        super().__init__("executions", allowed, allowed, scope, detail)


class TooManyStreams(QuotaExceeded):
    code = "too_many_streams"
    retry_after = 1

    def __init__(self, allowed: int, scope: str) -> None:
        detail = f"This {scope} has {allowed} open streams, as many as it may have. Close one first."
        super().__init__("streams", allowed, allowed, scope, detail)


class TooManyShells(Limited):
    code = "too_many_shells"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The session has {limit} named shells, as many as it may have. End one with 'exit'.",
            limit="shells",
            used=limit,
            allowed=limit,
        )


class ShellBusy(Limited):
    code = "shell_busy"

    def __init__(self) -> None:
        super().__init__(
            "The shell was still busy with earlier commands when the timeout ended, so this one did not run. "
            'Wait, or use another shell ("shell": "name", or null for a process of its own).'
        )


class StdinFull(Limited):
    """Nothing of what was sent has been taken."""

    code = "stdin_full"

    def __init__(self, reason: str = "The command does not read its stdin.") -> None:
        super().__init__(f"{reason} Nothing was taken: send it again later.")


class NotBegun(StdinFull):
    def __init__(self) -> None:
        super().__init__("The command has not begun: it waits for its shell.")


class Unavailable(SandboxError):
    """Something behind us does not answer. Nothing was changed: a retry can help."""

    retryable = True
    retry_after: int = 2


class KeeperUnavailable(Unavailable):
    """The keeper is down or too slow. Running commands in open sessions still works."""

    code = "keeper_unavailable"


class EngineUnavailable(Unavailable):
    """The Docker Engine refused or did not answer."""

    code = "engine_unavailable"


class StoreUnavailable(Unavailable):
    """The database cannot be read or written: a full disk, most often."""

    code = "store_unavailable"


class GuestUnavailable(Unavailable):
    """The sandbox stopped answering. The command may have run: look before retrying."""

    code = "guest_unavailable"
    retryable = False


class ServerBusy(Unavailable):
    """Too many large requests at once."""

    code = "server_busy"


class HostFull(Unavailable):
    """The host's memory is promised to sessions that are open; those go on."""

    code = "host_full"
    retry_after = 10

    def __init__(self, used: int, allowed: int) -> None:
        detail = (
            f"The server has promised {used} of the {allowed} bytes of memory that it has for sessions. "
            "Try again when some were closed, or ask for less memory."
        )
        super().__init__(detail, limit="host_memory", used=used, allowed=allowed)
