"""What can go wrong, and whether to try again.

    SandboxError
    ├── ConfigurationError      no address, no key, or a setting that makes no sense (a ValueError too)
    ├── ClientClosed            this client was closed
    ├── CommandFailed           check=True, and the command did not succeed; has .result
    ├── StillRunning            not over after the time you gave it (a TimeoutError too)
    ├── ConnectionFailed        no connection could be made; nothing ran
    ├── ConnectionLost          sent, but no whole answer came back; it may have run
    │   └── AnswerTimeout       the same: no answer in time
    ├── UnexpectedAnswer        what answers there is not a server this client understands
    ├── InvalidRequest          the server refuses the request as it stands
    │   └── RequestTooLarge
    ├── Unauthorized            the key is not valid
    ├── Forbidden               the key is right, but not for this
    │   ├── ScopeMissing        it lacks a scope; has .scope
    │   └── TenantSuspended     its tenant may do nothing for now
    ├── WrongHost               the server does not answer to this host name
    ├── ForbiddenOrigin         the server takes no requests from this web page
    ├── SessionNotFound         no such session, or not yours
    ├── SessionEnded            the session is over; has .cause and .ended_at
    ├── ExecutionNotFound       no such execution in this session
    ├── Conflict                it contradicts another request, or the state things are in
    │   ├── ExecutionExists     the id belongs to another execution
    │   ├── ExecutionEnded      it is over
    │   ├── NoStdin             it was started without a stdin that can be written to
    │   └── NoTerminal          it was started without a terminal
    ├── LimitReached            too much, too often; has .limit, .used, .allowed and .retry_after
    │   ├── RateLimited         too many requests in a while
    │   ├── QuotaExceeded       a quota of the tenant, of a user or of a session; has .scope, too
    │   │   ├── TooManySessions
    │   │   ├── TooManyExecutions
    │   │   └── TooManyStreams
    │   ├── StdinFull           the program does not read what it was sent
    │   └── ShellBusy
    ├── Unavailable             the server cannot do it now
    │   ├── HostFull            the server has no memory left for another session
    │   └── GuestUnavailable    the sandbox stopped answering; the command may have run
    ├── InternalError           a bug in the server
    ├── FileError               something about a file (an OSError too): see `file_errors`
    └── and those of uploads and workspaces: see `workspace_errors`; of tenants and keys: see `key_errors`

A command that exits with another code than 0 is a result, not an error. The client has already retried
whatever could not run twice by the time one of these is raised. "Retry" below means: call again yourself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .base_errors import Conflict as Conflict
from .base_errors import InvalidRequest as InvalidRequest
from .base_errors import LimitReached as LimitReached
from .base_errors import SandboxError as SandboxError
from .base_errors import text
from .file_errors import FILE_CODES
from .key_errors import KEY_CODES
from .key_errors import Forbidden as Forbidden
from .key_errors import ScopeMissing as ScopeMissing
from .key_errors import TenantSuspended as TenantSuspended
from .workspace_errors import WORKSPACE_CODES

if TYPE_CHECKING:
    from .results import ExecutionResult


class ConfigurationError(SandboxError, ValueError):
    """No address, no key, or a setting that makes no sense. Do not retry: the message says what to set."""


class ClientClosed(SandboxError):
    """This client was closed. Do not retry: make a new one."""


class CommandFailed(SandboxError):
    """The command did not succeed, and you asked to be told. It ran: retry only if it may run twice."""

    def __init__(self, result: ExecutionResult) -> None:
        super().__init__(result.summary)
        self.args = (result,)  # what a copy or a pickle is made from
        self.result = result

    def __str__(self) -> str:
        return self.result.summary


class StillRunning(SandboxError, TimeoutError):
    """It is not over after the time you gave it, and goes on. Safe to retry: wait again, or kill it."""


class ConnectionFailed(SandboxError):
    """No connection could be made, so nothing ran. Safe to retry once the server is up."""


class ConnectionLost(SandboxError):
    """The request was sent and no whole answer came back. It may have run: look before you retry."""


class AnswerTimeout(ConnectionLost):
    """The server did not answer in time. The command may have run, or be running: look before you retry."""


class UnexpectedAnswer(SandboxError):
    """What answers there is not a server this client understands. Do not retry: check url and versions."""


class RequestTooLarge(InvalidRequest):
    """More was sent than the server takes. Do not retry: send less, or in parts."""


class Unauthorized(SandboxError):
    """The key is missing, wrong or withdrawn. Do not retry: get a valid key."""


class WrongHost(SandboxError):
    """The server does not answer to this host name. Do not retry: use a name listed in its SANDBOX_HOSTS."""


class ForbiddenOrigin(SandboxError):
    """The server takes no requests from this web page. Do not retry: ask its operator."""


class SessionNotFound(SandboxError):
    """There is no such session, or it is not yours. Do not retry: open another."""


class SessionEnded(SandboxError):
    """The session is over and its files are gone. Do not retry in it: open another."""

    @property
    def cause(self) -> str | None:
        """Why: closed, expired, oom, killed, engine_stopped, crashed or lost."""
        return text(self.extras.get("cause"))

    @property
    def ended_at(self) -> str | None:
        """When, as RFC 3339 text."""
        return text(self.extras.get("ended_at"))


class ExecutionNotFound(SandboxError):
    """There is no such execution in this session, or it is long over. Do not retry: start another."""


class ExecutionExists(Conflict):
    """This id belongs to another execution; nothing ran. Do not retry: take another id."""


class ExecutionEnded(Conflict):
    """The execution is over. Do not retry: ask for its result or its log."""


class NoStdin(Conflict):
    """Its stdin was closed, or cannot be written to. Do not retry: start with stdin=PIPE, or with a pty."""


class NoTerminal(Conflict):
    """It has no terminal to resize. Do not retry: start with pty=(columns, rows)."""


class RateLimited(LimitReached):
    """Too many requests in a while; nothing ran. Safe to retry after `retry_after` seconds."""


class QuotaExceeded(LimitReached):
    """A quota is used up; nothing ran. Safe to retry when `retryable` is true, and less is in use."""

    @property
    def scope(self) -> str | None:
        """Whose quota: of the tenant, a user or a session."""
        return text(self.extras.get("scope"))


class TooManySessions(QuotaExceeded):
    """No more sessions may be open; nothing was opened. Safe to retry after closing one."""


class TooManyExecutions(QuotaExceeded):
    """No more commands may run at once; nothing ran. Safe to retry when one has finished."""


class TooManyStreams(QuotaExceeded):
    """No more streams may be open at once. Safe to retry when one was closed."""


class StdinFull(LimitReached):
    """The program does not read its stdin, and nothing of this was taken. Safe to retry when it reads."""


class ShellBusy(LimitReached):
    """The shell is still busy; nothing ran. Safe to retry later, or now with another `shell`."""


class Unavailable(SandboxError):
    """The server cannot do it now. Safe to retry when `retryable` is true."""


class HostFull(Unavailable):
    """The server's memory is promised to other sessions. Safe to retry later, or with less memory."""


class GuestUnavailable(Unavailable):
    """The sandbox stopped answering. The command may have run: look before you retry."""


class InternalError(SandboxError):
    """A bug in the server. Do not retry: report it with its `request_id`."""


BY_CODE: Mapping[str, type[SandboxError]] = {
    "invalid_request": InvalidRequest,
    "malformed_http": UnexpectedAnswer,
    "unauthorized": Unauthorized,
    "wrong_host": WrongHost,
    "forbidden_origin": ForbiddenOrigin,
    "method_not_allowed": UnexpectedAnswer,
    "unsupported_media_type": UnexpectedAnswer,
    "session_not_found": SessionNotFound,
    "session_ended": SessionEnded,
    "execution_not_found": ExecutionNotFound,
    "execution_ended": ExecutionEnded,
    "execution_exists": ExecutionExists,
    "no_stdin": NoStdin,
    "no_terminal": NoTerminal,
    "idempotency_conflict": Conflict,
    "result_forgotten": Conflict,
    "body_too_large": RequestTooLarge,
    "uri_too_long": RequestTooLarge,
    "headers_too_large": RequestTooLarge,
    "too_many_sessions": TooManySessions,
    "too_many_executions": TooManyExecutions,
    "too_many_shells": LimitReached,
    "too_many_streams": TooManyStreams,
    "stdin_full": StdinFull,
    "shell_busy": ShellBusy,
    "rate_limited": RateLimited,
    "quota_exceeded": QuotaExceeded,
    "internal_error": InternalError,
    "no_answer": ConnectionLost,
    "server_unavailable": ConnectionFailed,
    "keeper_unavailable": Unavailable,
    "engine_unavailable": Unavailable,
    "store_unavailable": Unavailable,
    "guest_unavailable": GuestUnavailable,
    "server_busy": Unavailable,
    "host_full": HostFull,
    "storage_full": Unavailable,
    **FILE_CODES,
    **WORKSPACE_CODES,
    **KEY_CODES,
}

# For answers without a code: those of a proxy in between. A 502 or 504 may come after the command began.
BY_STATUS: Mapping[int, type[SandboxError]] = {
    401: Unauthorized,
    403: Forbidden,
    413: RequestTooLarge,
    429: LimitReached,
    502: ConnectionLost,
    503: Unavailable,
    504: ConnectionLost,
}
