"""The only module that speaks to a guest. Everything it hears is untrusted: capped, timed and checked here.

Connections are kept and used again. Every command has an id, and the guest runs an id once, so a command can
be sent again on a fresh connection when a kept one turns out to be dead.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import stat
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, BinaryIO

from server import errors
from server.guest import protocol

_CONNECT_SECONDS = 5.0
_ANSWER_GRACE = (
    20.0  # beyond the time a command may wait and run: the guest ends stubborn ones within seconds
)
_HEAD_LIMIT = 4 << 20
_KEPT_PER_SANDBOX = 2
_KEPT_SANDBOXES = 512


class GuestSilent(Exception):
    """The guest cannot be reached, or hung up: its sandbox may be gone. The keeper can tell."""


@dataclass(frozen=True)
class Sandbox:
    """Where a guest is, and the secret that it must prove to know."""

    id: str
    address: str
    secret: bytes


Stdin = bytes | BinaryIO  # what is large waits in a file


@dataclass(frozen=True)
class Command:
    """What a caller wants to run, after every check."""

    command: str | list[str]
    timeout: float
    language: str = "bash"
    shell: str | None = "main"
    cwd: str | None = None
    env: dict[str, str] | None = None
    stdin: Stdin | None = None


@dataclass(frozen=True)
class Stream:
    """What was kept of one stream: its first and last bytes, and how many there were in all."""

    first: bytes
    last: bytes
    total: int


@dataclass(frozen=True)
class Answer:
    exit_code: int
    signal: str | None
    timed_out: bool
    oom_killed: bool
    restarted: bool
    cwd: str
    seconds: float
    stdout: Stream
    stderr: Stream
    output: Stream
    value: str | None
    error: dict[str, str] | None


@dataclass(frozen=True)
class Binding:
    """Whom a guest serves and within which limits: all that is told when a sandbox is claimed."""

    uid: int
    processes: int
    executions: int
    output_limit: int
    env: dict[str, str]


class GuestClient:
    def __init__(self, output_limit: int, executions_max: int) -> None:
        self._limits = protocol.Limits(_HEAD_LIMIT, 3 * output_limit)
        self._executions_max = executions_max
        self._kept: OrderedDict[str, list[socket.socket]] = OrderedDict()

    def bind(self, sandbox: Sandbox, binding: Binding, deadline: float) -> None:
        head = {"verb": "bind", "gid": binding.uid, **vars(binding)}
        self._ask(sandbox, head, b"", deadline)

    def run(self, sandbox: Sandbox, execution: str, fingerprint: str, command: Command) -> Answer:
        head = {
            "verb": "run",
            "execution": execution,
            "fingerprint": fingerprint,
            "command": command.command,
            "timeout": command.timeout,
            "language": command.language,
            "shell": command.shell,
            "cwd": command.cwd,
            "env": command.env or {},
            "stdin": command.stdin is not None,
        }
        deadline = time.monotonic() + 2 * command.timeout + _ANSWER_GRACE
        return _answer(*self._ask(sandbox, head, command.stdin or b"", deadline))

    def is_bound(self, sandbox: Sandbox) -> bool:
        """Whether it still serves the session it was opened for: a restarted one does not."""
        connection, hello = self._greet(sandbox)
        connection.close()
        return hello.get("bound") is not False

    def forget(self, sandbox_id: str) -> None:
        for connection in self._kept.pop(sandbox_id, []):
            connection.close()

    def _ask(
        self, sandbox: Sandbox, head: protocol.Head, body: Stdin, deadline: float
    ) -> tuple[protocol.Head, protocol.Body]:
        kept = self._kept.get(sandbox.id)
        if kept:
            try:
                return self._exchange(sandbox, kept.pop(), head, body, deadline)
            except GuestSilent:
                self.forget(sandbox.id)
        return self._exchange(sandbox, self._connect(sandbox), head, body, deadline)

    def _exchange(
        self, sandbox: Sandbox, connection: socket.socket, head: protocol.Head, body: Stdin, deadline: float
    ) -> tuple[protocol.Head, protocol.Body]:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            if isinstance(body, bytes):
                protocol.send(connection, head, body)
            else:
                protocol.send_file(connection, head, body)
            answer, answer_body = protocol.receive(connection, self._limits, deadline)
        except TimeoutError as exc:
            connection.close()
            raise errors.GuestUnavailable(
                "The sandbox did not answer in time. The command may have run."
            ) from exc
        except (OSError, EOFError, protocol.FrameError) as exc:
            connection.close()
            raise GuestSilent from exc
        except BaseException:
            connection.close()  # the caller gave up in the middle: the rest of the answer is nobody's
            raise
        self._keep(sandbox.id, connection)
        if answer.get("code") == "not_bound":
            raise GuestSilent  # it was restarted behind our back, and knows nobody any more
        if answer.get("ok") is not True:
            raise self._refusal(answer)
        return answer, answer_body

    def _keep(self, sandbox_id: str, connection: socket.socket) -> None:
        kept = self._kept.setdefault(sandbox_id, [])
        self._kept.move_to_end(sandbox_id)
        if len(kept) < _KEPT_PER_SANDBOX:
            kept.append(connection)
        else:
            connection.close()
        if len(self._kept) > _KEPT_SANDBOXES:
            self.forget(next(iter(self._kept)))

    def _connect(self, sandbox: Sandbox) -> socket.socket:
        return self._greet(sandbox)[0]

    def _greet(self, sandbox: Sandbox) -> tuple[socket.socket, protocol.Head]:
        connection = dial(sandbox.address)
        nonce = secrets.token_hex(16)
        try:
            protocol.send(connection, {"verb": "hello", "nonce": nonce})
            hello, _ = protocol.receive(connection, self._limits, time.monotonic() + _CONNECT_SECONDS)
        except (OSError, EOFError, protocol.FrameError) as exc:
            connection.close()
            raise GuestSilent from exc
        proof = str(hello.get("proof")).encode("utf-8", "replace")
        if not hmac.compare_digest(proof, protocol.prove(sandbox.secret, nonce).encode()):
            connection.close()
            raise GuestSilent
        if hello.get("version") != protocol.VERSION:
            connection.close()
            raise errors.GuestUnavailable(
                "The sandbox's image holds a guest of another version. Rebuild it and open a new session."
            )
        return connection, hello

    def _refusal(self, answer: protocol.Head) -> errors.SandboxError:
        code = answer.get("code")
        if code == "no_such_directory":
            return errors.NoSuchDirectory(
                "cwd", "The directory does not exist in the sandbox, or may not be entered."
            )
        if code == "too_many_executions":
            return errors.TooManyExecutions(self._executions_max)
        if code == "too_many_shells":
            return errors.TooManyShells(16)
        known = {
            "shell_busy": errors.ShellBusy,
            "execution_conflict": errors.IdempotencyConflict,
            "result_forgotten": errors.ResultForgotten,
        }
        if isinstance(code, str) and code in known:
            return known[code]()
        return errors.GuestUnavailable("The sandbox could not start the command. Nothing was run.")


def dial(address: str) -> socket.socket:
    """Connect to a guest's socket. The directory it lies in is the guest's ground: no link is followed."""
    scheme, _, path = address.partition(":")
    if scheme != "unix":
        raise ValueError(f"no way to dial {scheme}")
    connection = socket.socket(socket.AF_UNIX)
    try:
        place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if not stat.S_ISSOCK(os.fstat(place).st_mode):
                raise GuestSilent
            connection.settimeout(_CONNECT_SECONDS)
            connection.connect(f"/proc/self/fd/{place}")
        finally:
            os.close(place)
    except OSError as exc:
        connection.close()
        raise GuestSilent from exc
    except GuestSilent:
        connection.close()
        raise
    return connection


def _answer(head: protocol.Head, body: protocol.Body) -> Answer:
    try:
        stdout, stderr, both = _streams(head["sizes"], body)
        return Answer(
            exit_code=_number(head["exit_code"], 0, 255),
            signal=_text(head["signal"]),
            timed_out=head["timed_out"] is True,
            oom_killed=head["oom_killed"] is True,
            restarted=head["restarted"] is True,
            cwd=_text(head["cwd"]) or "",
            seconds=_seconds(head["seconds"]),
            stdout=stdout,
            stderr=stderr,
            output=both,
            value=_text(head["value"]),
            error=_error(head["error"]),
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise errors.GuestUnavailable(
            "The sandbox gave an answer that makes no sense. The command may have run."
        ) from exc


def _streams(sizes: dict[str, Any], body: protocol.Body) -> tuple[Stream, Stream, Stream]:
    found: dict[str, Stream] = {}
    at = 0
    for name in ("stdout", "stderr", "both"):
        if name in sizes:
            first, last, total = (_number(size, 0, 1 << 62) for size in sizes[name])
            kept = bytes(body[at : at + first + last])
            found[name] = Stream(kept[:first], kept[first:], total)
            at += first + last
    if at != len(body):
        raise ValueError("sizes and body disagree")
    stdout, stderr = found["stdout"], found["stderr"]
    return stdout, stderr, found.get("both") or (stdout if stdout.total else stderr)


def _number(value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError("not a number in range")
    return value


def _seconds(value: object) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1e9:  # type: ignore[operator] # a number, as checked
        raise ValueError("not a duration")
    return float(value)  # type: ignore[arg-type]


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise ValueError("not a text")


def _error(value: object) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError("not an error")
    return {name: _text(value[name]) or "" for name in ("name", "message", "traceback")}
