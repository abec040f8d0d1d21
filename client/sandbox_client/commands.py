"""What is asked of the server to run a command: options as people write them, as the JSON it takes."""

from __future__ import annotations

import base64
import enum
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from .errors import ConfigurationError

UNSAID_TIMEOUT = 600.0  # without a timeout the server's own default holds: wait longer than any sensible one

T = TypeVar("T")


class Shell(enum.Enum):
    """Stands for a shell that was not named."""

    MAIN = "main"


class Pipe(enum.Enum):
    """Stands for a stdin that stays open."""

    PIPE = "pipe"


PIPE = Pipe.PIPE


class CommandOptions(TypedDict, total=False):
    """The options of a command, as `execute` has them; `stdin` may be PIPE, to be written to later."""

    cwd: str | None
    env: Mapping[str, str] | None
    stdin: str | bytes | Pipe | None
    timeout: float | None
    shell: str | Shell | None
    language: str | None


def command_body(
    command: str | Sequence[str],
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | bytes | Pipe | None = None,
    timeout: float | None = None,
    shell: str | Shell | None = Shell.MAIN,
    language: str | None = None,
) -> dict[str, Any]:
    """The body of a request that runs a command."""
    body = said(cwd=cwd, env=copy(env), timeout=timeout, language=language)
    body["command"] = command if isinstance(command, str) else list(command)
    if isinstance(stdin, Pipe):
        body["stdin"] = stdin.value
    elif isinstance(stdin, bytes) or stdin == PIPE.value:  # that text means something else: see Pipe
        body["stdin_base64"] = base64_of(stdin)
    elif stdin is not None:
        body["stdin"] = stdin
    if not isinstance(shell, Shell):
        body["shell"] = shell
    return body


def pty_body(pty: tuple[int, int] | None) -> dict[str, Any]:
    """The field for a terminal of `(columns, rows)`."""
    return {} if pty is None else {"pty": {"cols": pty[0], "rows": pty[1]}}


def base64_of(data: str | bytes) -> str:
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def said(**fields: Any) -> dict[str, Any]:
    """Those fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def copy(pairs: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if pairs is None else dict(pairs)


def items(found: Sequence[T] | None) -> list[T] | None:
    """A list of its own, for whoever gives a sequence. A lone text is no sequence of letters here."""
    if isinstance(found, (str, bytes)):
        raise ConfigurationError(f"A list is needed, such as [{found!r}].")
    return None if found is None else list(found)


def new_id() -> str:
    return uuid.uuid4().hex


def checked_session_id(session_id: str) -> str:
    # It becomes part of a path.
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,200}", session_id):
        raise ConfigurationError(f"Not a session id: {session_id[:80]!r}.")
    return session_id


def checked_execution_id(execution_id: str) -> str:
    # It becomes part of a path. Terminals have a dot in theirs.
    if not re.fullmatch(r"(?!\.+$)[A-Za-z0-9_.-]{1,200}", execution_id):
        raise ConfigurationError(f"Not an execution id: {execution_id[:80]!r}.")
    return execution_id


def byte_count(size: int | str | None, name: str = "memory") -> int | None:
    if not isinstance(size, str):
        return size
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", size.strip().lower())
    if match is None:
        raise ConfigurationError(f'{name} must be bytes or like "512m" or "2g", not {size!r}.')
    return int(float(match[1]) * _UNITS[match[2]])


_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
