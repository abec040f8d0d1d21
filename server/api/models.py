"""The shapes of requests. /openapi.json is made from these and from `answers`, so it cannot drift.

Limits that an operator sets (largest memory, longest timeout) are checked in `limits.py`; what is here holds
everywhere.
"""

from __future__ import annotations

import base64
import binascii
import re
import signal
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
_INPUT_BYTES = 1 << 20


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain a NUL character")
    return text


def printable(text: str) -> str:
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


def metadata_of(metadata: dict[str, str]) -> dict[str, str]:
    if len(metadata) > 32:
        raise ValueError("may hold 32 labels at most")
    for name, value in metadata.items():
        if not 1 <= len(printable(name)) <= 64 or len(printable(value)) > 256:
            raise ValueError("names are 1 to 64 characters, values at most 256")
    return metadata


Env = Annotated[dict[str, str], AfterValidator(_env)]
Base64 = Annotated[
    bytes, BeforeValidator(_base64), WithJsonSchema({"type": "string", "contentEncoding": "base64"})
]
FileId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Request(BaseModel):
    """Unknown fields are refused by name; types are taken as they are, never converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Screen(Request):
    """The size of a terminal."""

    cols: Annotated[int, Field(ge=1, le=1000)] = 80
    rows: Annotated[int, Field(ge=1, le=1000)] = 24


class Code(Request):
    """What shall be run, whatever it is run in."""

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
    language: Literal["bash", "python"] = Field("bash", description="What the command is written in.")
    stream: bool = Field(False, description="Answer with the events as they happen.")

    @model_validator(mode="after")
    def _sensible(self) -> Code:
        if self.stdin is not None and self.stdin_base64 is not None:
            raise ValueError("send stdin or stdin_base64, not both")
        if isinstance(self.command, list) and self.language == "python":
            raise ValueError("Python code is a string, not a list")
        return self


class RunCommand(Code):
    """A command in an open session."""

    stdin: str | None = Field(
        None, description='What the command reads, as text; "pipe" leaves it open for POST .../input.'
    )
    shell: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")] | None = Field(
        "main",
        description="Which shell keeps the state; null runs a process of its own, as background and pty do "
        "unless a shell is named.",
    )
    background: bool = Field(False, description="Answer at once; the execution goes on.")
    wait: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, description="Answer after so many seconds at most; the execution goes on."
    )
    kill_on_disconnect: bool = Field(
        False, description="With stream: kill the command when this caller goes away."
    )
    pty: Screen | None = Field(None, description="Run on a terminal of this size.")
    execution_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = Field(
        None, description="An id of your own; the same id and body again join the same execution."
    )

    @model_validator(mode="after")
    def _consistent(self) -> RunCommand:
        oneoff = self.place is None and isinstance(self.command, str) and self.language == "bash"
        if oneoff and len(self.command) >= _ARGUMENT_BYTES // 4:
            raise ValueError(
                f"without a shell a command must be smaller than {_ARGUMENT_BYTES // 4} characters"
            )
        if self.stream and (self.background or self.wait is not None):
            raise ValueError("stream excludes background and wait")
        if self.kill_on_disconnect and not self.stream:
            raise ValueError("kill_on_disconnect needs stream")
        return self._consistent_pty()

    def _consistent_pty(self) -> RunCommand:
        if self.pty is None:
            return self
        if self.language != "bash" or self.place is not None:
            raise ValueError("what runs on a pty is a process of its own: no shell, no language")
        if self.stdin_base64 is not None or self.stdin not in (None, "pipe"):
            raise ValueError("the stdin of a pty is open: send input to the execution instead")
        return self

    @property
    def place(self) -> str | None:
        """The shell it runs in. What runs in the background must not hold the main one up."""
        if isinstance(self.command, list):
            return None
        apart = self.background or self.pty is not None
        return None if apart and "shell" not in self.model_fields_set else self.shell

    @property
    def open_stdin(self) -> bool:
        return self.stdin == "pipe" or self.pty is not None

    def stdin_bytes(self) -> bytes | None:
        if self.open_stdin:
            return None
        return self.stdin_base64 if self.stdin is None else self.stdin.encode()


class Execute(RunCommand):
    """A command, and the session to run it in."""

    session_id: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        description="From /create_session."
    )


class Signal(Request):
    signal: str | int = Field(description="A name, such as SIGINT or INT, or its number.")

    @property
    def number(self) -> int | None:
        """None for what is no signal."""
        named = self.signal if isinstance(self.signal, int) else self.signal.upper()
        try:
            if isinstance(named, int):
                return signal.Signals(named).value
            return signal.Signals[named if named.startswith("SIG") else f"SIG{named}"].value
        except (KeyError, ValueError):
            return None


class Input(Request):
    data: str | None = Field(None, description="What the command shall read, as text.")
    data_base64: Base64 | None = Field(None, description="The same for any bytes.")
    close: bool = Field(False, description="Close its stdin afterwards.")

    @model_validator(mode="after")
    def _consistent(self) -> Input:
        if self.data is not None and self.data_base64 is not None:
            raise ValueError("send data or data_base64, not both")
        if len(self.sent) > _INPUT_BYTES:
            raise ValueError(f"must be smaller than {_INPUT_BYTES} bytes; send it in pieces")
        return self

    @property
    def sent(self) -> bytes:
        return self.data_base64 or (self.data or "").encode()


class GetExecution(Request):
    wait: Annotated[float, Field(ge=0, le=300, allow_inf_nan=False)] = 0.0


class Follow(Request):
    after: Annotated[int, Field(ge=0, le=1 << 62)] | None = None
    ticket: str | None = None


class GetLog(Request):
    stream: Literal["stdout", "stderr"] | None = None


class NewTicket(Request):
    purpose: Literal["terminal", "events"] = Field(alias="for", description="What it shall open.")
    execution_id: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None, description="Whose events."
    )

    @model_validator(mode="after")
    def _consistent(self) -> NewTicket:
        if (self.execution_id is None) != (self.purpose == "terminal"):
            raise ValueError("events need an execution_id, a terminal none")
        return self


class OpenTerminal(Request):
    cols: Annotated[int, Field(ge=1, le=1000)] | None = None
    rows: Annotated[int, Field(ge=1, le=1000)] | None = None
    execution_id: Annotated[str, Field(max_length=100)] | None = None
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,32}$")] = "main"
    after: Annotated[int, Field(ge=0, le=1 << 62)] | None = None
    ticket: str | None = None


class TerminalMessage(Screen):
    """What a viewer of a terminal may say besides what it types."""

    type: Literal["resize", "input", "ping"]
    data: str = ""
