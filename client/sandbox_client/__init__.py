"""Run shell commands and Python in an isolated sandbox on your own server.

    from sandbox_client import SandboxClient

    with SandboxClient() as sandbox:
        result = sandbox.execute("ls -la")
        print(result.output, result.exit_code)

What can go wrong, and whether to retry: see `sandbox_client.errors`.
"""

from .client import SandboxClient
from .errors import (
    AnswerTimeout,
    ClientClosed,
    CommandFailed,
    ConfigurationError,
    Conflict,
    ConnectionFailed,
    ConnectionLost,
    GuestUnavailable,
    InternalError,
    InvalidRequest,
    LimitReached,
    RequestTooLarge,
    SandboxError,
    SessionEnded,
    SessionNotFound,
    ShellBusy,
    TooManyExecutions,
    TooManySessions,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
    WrongHost,
)
from .results import ExecutionResult, PythonError, SessionInfo
from .version import __version__

__all__ = [
    "AnswerTimeout",
    "ClientClosed",
    "CommandFailed",
    "ConfigurationError",
    "Conflict",
    "ConnectionFailed",
    "ConnectionLost",
    "ExecutionResult",
    "GuestUnavailable",
    "InternalError",
    "InvalidRequest",
    "LimitReached",
    "PythonError",
    "RequestTooLarge",
    "SandboxClient",
    "SandboxError",
    "SessionEnded",
    "SessionInfo",
    "SessionNotFound",
    "ShellBusy",
    "TooManyExecutions",
    "TooManySessions",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "WrongHost",
    "__version__",
]
