"""The shapes of requests and answers. /openapi.json is made from these, so the description cannot drift.

Limits that an operator sets (largest memory, longest timeout) are checked in `limits.py`; what is here holds
everywhere.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BASH_OWN = {"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID"}
_MOST_VARIABLES = 256
_ENV_BYTES = 128 << 10
_ARGUMENT_BYTES = 128 << 10  # the kernel's limit for one argument
_ARGV_BYTES = 3 << 19
_COMMAND_BYTES = 1 << 20


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain a NUL character")
    return text


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must not contain control characters")
    return text


def _env(env: dict[str, str]) -> dict[str, str]:
    if len(env) > _MOST_VARIABLES:
        raise ValueError(f"may hold {_MOST_VARIABLES} variables at most")
    for name, value in env.items():
        if not _ENV_NAME.fullmatch(name):
            raise ValueError("names must be letters, digits and underscores, not starting with a digit")
        if name in _BASH_OWN:
            raise ValueError(f"{name} is bash's own and cannot be set")
        _no_nul(value)
    if sum(len(name) + len(value.encode()) + 2 for name, value in env.items()) > _ENV_BYTES:
        raise ValueError(f"must be smaller than {_ENV_BYTES} bytes in all")
    return env


def _command(command: str | list[str]) -> str | list[str]:
    if isinstance(command, list):
        return _argv(command)
    if not command.strip():
        raise ValueError("must not be empty")
    if len(command.encode()) > _COMMAND_BYTES:
        raise ValueError(f"must be smaller than {_COMMAND_BYTES} bytes; send data as stdin")
    return _no_nul(command)


def _argv(argv: list[str]) -> list[str]:
    if not argv or not argv[0]:
        raise ValueError("must name a program first")
    sizes = [len(_no_nul(argument).encode()) + 1 for argument in argv]
    if max(sizes) > _ARGUMENT_BYTES:
        raise ValueError(f"each argument must be smaller than {_ARGUMENT_BYTES} bytes; send data as stdin")
    if sum(sizes) + 8 * len(sizes) > _ARGV_BYTES:
        raise ValueError(f"arguments must be smaller than {_ARGV_BYTES} bytes in all; send data as stdin")
    return argv


def _base64(text: object) -> bytes:
    try:
        return base64.b64decode(text, validate=True)  # type: ignore[arg-type] # anything else is refused here
    except (binascii.Error, TypeError, ValueError) as exc:
        raise ValueError("must be base64") from exc


def _metadata(metadata: dict[str, str]) -> dict[str, str]:
    if len(metadata) > 32:
        raise ValueError("may hold 32 labels at most")
    for name, value in metadata.items():
        if not 1 <= len(_printable(name)) <= 64 or len(_printable(value)) > 256:
            raise ValueError("names are 1 to 64 characters, values at most 256")
    return metadata


Env = Annotated[dict[str, str], AfterValidator(_env)]
Base64 = Annotated[
    bytes, BeforeValidator(_base64), WithJsonSchema({"type": "string", "contentEncoding": "base64"})
]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Request(BaseModel):
    """Unknown fields are refused by name; types are taken as they are, never converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class CreateSession(Request):
    user_id: Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_printable)] | None = Field(
        None,
        description="Your name for the end user: one live session per user; asking again gives the same one.",
    )
    image: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="A name from the server's list."
    )
    memory: Annotated[int, Field(ge=64 << 20)] | None = Field(None, description="Bytes, at least 64 MiB.")
    cpus: Annotated[float, Field(ge=0.05, allow_inf_nan=False)] | None = Field(
        None, description="CPUs, may be a fraction."
    )
    timeout: Seconds | None = Field(
        None, description="The lease: seconds the session lives after its last use."
    )
    env: Env | None = Field(None, description="Variables for every command of the session.")
    metadata: Annotated[dict[str, str], AfterValidator(_metadata)] | None = Field(
        None, description="Labels of yours; the list can be filtered by them."
    )


class RunCommand(Request):
    """A command in an open session."""

    command: Annotated[str | list[str], AfterValidator(_command)] = Field(
        description="A shell string (or Python code), or a program with its arguments."
    )
    cwd: Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(_no_nul)] | None = Field(
        None, description="The directory for this command alone."
    )
    env: Env | None = Field(None, description="Variables for this command alone.")
    stdin: str | None = Field(None, description="What the command reads, as text.")
    stdin_base64: Base64 | None = Field(None, description="The same for any bytes.")
    timeout: Seconds | None = Field(
        None, description="Seconds after which the command and its children are killed."
    )
    shell: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] | None = Field(
        "main", description="Which shell keeps the state; null runs a process of its own."
    )
    language: Literal["bash", "python"] = Field("bash", description="What the command is written in.")

    @model_validator(mode="after")
    def _consistent(self) -> RunCommand:
        if self.stdin is not None and self.stdin_base64 is not None:
            raise ValueError("send stdin or stdin_base64, not both")
        if isinstance(self.command, list) and self.language == "python":
            raise ValueError("Python code is a string, not a list")
        oneoff = self.shell is None and isinstance(self.command, str) and self.language == "bash"
        if oneoff and len(self.command) >= _ARGUMENT_BYTES // 4:
            raise ValueError(
                f"without a shell a command must be smaller than {_ARGUMENT_BYTES // 4} characters"
            )
        return self

    def stdin_bytes(self) -> bytes | None:
        return self.stdin_base64 if self.stdin is None else self.stdin.encode()


class Execute(RunCommand):
    """A command, and the session to run it in."""

    session_id: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        description="From /create_session."
    )


class Cleanup(Request):
    session_id: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        description="From /create_session."
    )


class Extend(Request):
    timeout: Seconds | None = Field(
        None, description="A new lease in seconds; without it the old one starts anew."
    )


class ListSessions(Request):
    user_id: Annotated[str, Field(max_length=256)] | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    cursor: Annotated[str, Field(pattern=r"^\d+(\.\d+)?/[0-9a-f]{32}$")] | None = None


class SessionAnswer(BaseModel):
    session_id: str
    status: Literal["created", "existing"] | None = Field(None, description="Only when it is being created.")
    state: Literal["running"]
    user_id: str | None
    image: str
    memory: int
    cpus: float
    timeout: float
    created_at: str
    last_used_at: str
    expires_at: str
    metadata: dict[str, str]


class SessionList(BaseModel):
    sessions: list[SessionAnswer]
    next_cursor: str | None


class PythonError(BaseModel):
    name: str
    message: str
    traceback: str


class Result(BaseModel):
    execution_id: str
    session_id: str
    exit_code: int
    signal: str | None = Field(description="The signal that ended the command, such as SIGKILL.")
    timed_out: bool
    oom_killed: bool = Field(
        description="The kernel killed a process of the session for want of memory meanwhile."
    )
    stdout: str
    stderr: str
    output: str = Field(description="stdout and stderr together, in the order in which they arrived.")
    stdout_bytes: int = Field(description="The true size, also when less was kept.")
    stderr_bytes: int
    truncated: bool
    stdout_base64: str | None = Field(None, description="Only when the bytes are not UTF-8.")
    stderr_base64: str | None = None
    output_base64: str | None = None
    duration_ms: float
    cwd: str
    shell_restarted: bool = Field(
        description="The shell ended with this command: its state is lost, a fresh one follows."
    )
    value: str | None = Field(description="Python: the repr of the last expression.")
    error: PythonError | None = Field(description="Python: the exception, if one was raised.")


class Closed(BaseModel):
    session_id: str
    status: Literal["closed"]


class Problem(BaseModel):
    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    request_id: str
    model_config = ConfigDict(extra="allow")
