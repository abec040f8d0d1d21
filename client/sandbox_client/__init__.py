"""Run shell commands and Python in an isolated sandbox on your own server.

    from sandbox_client import SandboxClient

    with SandboxClient() as sandbox:
        result = sandbox.execute("ls -la")
        print(result.output, result.exit_code)

        for event in sandbox.stream("make test"):
            print(event.text, end="")

AsyncSandboxClient is the same with `await`.
What can go wrong, and whether to retry: see `sandbox_client.errors`.
"""

from .aio import AsyncExecution, AsyncSandboxClient
from .client import Execution, SandboxClient
from .commands import PIPE
from .errors import (
    AnswerTimeout,
    ClientClosed,
    CommandFailed,
    ConfigurationError,
    Conflict,
    ConnectionFailed,
    ConnectionLost,
    ExecutionEnded,
    ExecutionExists,
    ExecutionNotFound,
    ForbiddenOrigin,
    GuestUnavailable,
    InternalError,
    InvalidRequest,
    LimitReached,
    NoStdin,
    NoTerminal,
    RequestTooLarge,
    SandboxError,
    SessionEnded,
    SessionNotFound,
    ShellBusy,
    StdinFull,
    StillRunning,
    TooManyExecutions,
    TooManySessions,
    TooManyStreams,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
    WrongHost,
)
from .events import Event
from .results import ExecutionInfo, ExecutionResult, PythonError, SessionInfo
from .version import __version__

__all__ = [
    "PIPE",
    "AnswerTimeout",
    "AsyncExecution",
    "AsyncSandboxClient",
    "ClientClosed",
    "CommandFailed",
    "ConfigurationError",
    "Conflict",
    "ConnectionFailed",
    "ConnectionLost",
    "Event",
    "Execution",
    "ExecutionEnded",
    "ExecutionExists",
    "ExecutionInfo",
    "ExecutionNotFound",
    "ExecutionResult",
    "ForbiddenOrigin",
    "GuestUnavailable",
    "InternalError",
    "InvalidRequest",
    "LimitReached",
    "NoStdin",
    "NoTerminal",
    "PythonError",
    "RequestTooLarge",
    "SandboxClient",
    "SandboxError",
    "SessionEnded",
    "SessionInfo",
    "SessionNotFound",
    "ShellBusy",
    "StdinFull",
    "StillRunning",
    "TooManyExecutions",
    "TooManySessions",
    "TooManyStreams",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "WrongHost",
    "__version__",
]
