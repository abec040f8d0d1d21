"""The only module that speaks to a guest. Everything it hears is untrusted: capped, timed and checked here.

Connections are kept and used again. Every command has an id, and the guest runs an id once, so a command can
be sent again on a fresh connection when a kept one turns out to be dead.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from server import errors
from server.guest import protocol
from server.guest_answers import (
    Answer,
    Batch,
    Execution,
    Told,
    answer_of,
    batch_of,
    list_of,
    told_of,
)
from server.guest_refusals import refusal_of
from server.kept_connections import KeptConnections
from server.spool import Spooled, Stdin

_CONNECT_SECONDS = 5.0
_ANSWER_GRACE = 20.0  # beyond the time a command may wait and run: stubborn ones end within seconds
_HEAD_LIMIT = 4 << 20
TERMINAL = "terminal."  # what the ids of terminals begin with; no caller can choose such a one
LARGEST_BATCH = 64 << 10  # bytes of a log that are read at once
_LIST_SECONDS = 5.0
_START_GRACE = 50.0  # beyond the time to wait: an interpreter may have to be started first


class GuestSilent(Exception):
    """The guest cannot be reached, or hung up: its sandbox may be gone. The keeper can tell."""


@dataclass(frozen=True)
class Sandbox:
    """Where a guest is, and the secret that it must prove to know."""

    id: str
    address: str
    secret: bytes


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
    open_stdin: bool = False
    screen: tuple[int, int] | None = None
    again: bool = False  # its id may have been another's, which has ended


@dataclass(frozen=True)
class Binding:
    """Whom a guest serves and within which limits: all that is told when a sandbox is claimed."""

    uid: int
    processes: int
    executions: int
    output_limit: int
    log_limit: int
    soft_disk: int | None  # bytes; None where the storage itself keeps the limit
    env: dict[str, str]


class _Greeted(NamedTuple):
    """A connection on which hello was said, and what is to be proved with the answer."""

    connection: socket.socket
    nonce: str


class GuestClient:
    def __init__(self, output_limit: int, executions_max: int) -> None:
        self._limits = protocol.Limits(_HEAD_LIMIT, max(3 * output_limit, protocol.LONGEST_DESCRIPTION))
        self._executions_max = executions_max
        self._kept = KeptConnections()
        self._greeted: dict[str, _Greeted] = {}

    def bind(self, sandbox: Sandbox, binding: Binding, deadline: float) -> None:
        head = {"verb": "bind", "gid": binding.uid, **vars(binding)}
        self._ask(sandbox, head, b"", deadline)

    def prepare(self, sandbox: Sandbox, languages: Sequence[str]) -> None:
        """Have interpreters started before anybody waits for them."""
        self._simply(sandbox, {"verb": "prepare", "languages": list(languages)}, _START_GRACE)

    def adopt(
        self, sandbox: Sandbox, env: dict[str, str], shell: bytes, moved: bool = True
    ) -> tuple[int, ...]:
        """Tell a sandbox whose it is: the session's variables, and what its shell was like before, if it was.

        `moved` if its home may be another by now. Device and inode of the home directory that the guest sees.
        """
        head = {"verb": "adopt", "env": env, "moved": moved}
        answer, _ = self._simply(sandbox, head, _START_GRACE, shell)
        home = answer.get("home")
        return tuple(home) if isinstance(home, list) and all(type(one) is int for one in home) else ()

    def describe(self, sandbox: Sandbox, with_results: bool) -> bytes:
        """What its main shell is like, and what was run, in the guest's own words: for `adopt` alone."""
        return bytes(self._simply(sandbox, {"verb": "describe", "with_results": with_results})[1])

    def run(self, sandbox: Sandbox, execution: str, fingerprint: str, command: Command) -> Answer:
        """Run a command and wait for its end."""
        deadline = time.monotonic() + 2 * command.timeout + _ANSWER_GRACE
        head = _run_head(execution, fingerprint, command, None)
        return answer_of(*self._ask(sandbox, head, command.stdin or b"", deadline))

    def start(
        self, sandbox: Sandbox, execution: str, fingerprint: str, command: Command, wait: float
    ) -> Told:
        """Start a command, or join it, and wait so long for its end."""
        deadline = time.monotonic() + wait + _START_GRACE
        head = _run_head(execution, fingerprint, command, wait)
        return told_of(*self._ask(sandbox, head, command.stdin or b"", deadline))

    def tell(self, sandbox: Sandbox, execution: str, wait: float) -> Told:
        return told_of(*self._simply(sandbox, {"verb": "tell", "execution": execution, "wait": wait}, wait))

    def list(self, sandbox: Sandbox) -> list[Execution]:
        return list_of(*self._ask(sandbox, {"verb": "list"}, b"", time.monotonic() + _LIST_SECONDS))

    def read(self, sandbox: Sandbox, execution: str, after: int, wait: float) -> Batch:
        head = {"verb": "read", "execution": execution, "after": after, "limit": LARGEST_BATCH, "wait": wait}
        return batch_of(*self._simply(sandbox, head, wait))

    def signal(self, sandbox: Sandbox, execution: str, number: int) -> None:
        self._simply(sandbox, {"verb": "signal", "execution": execution, "signal": number})

    def input(self, sandbox: Sandbox, execution: str, data: bytes, close: bool) -> None:
        self._simply(sandbox, {"verb": "input", "execution": execution, "close": close}, body=data)

    def resize(self, sandbox: Sandbox, execution: str, cols: int, rows: int) -> None:
        self._simply(sandbox, {"verb": "resize", "execution": execution, "cols": cols, "rows": rows})

    def cancel(self, sandbox: Sandbox, execution: str) -> None:
        self._simply(sandbox, {"verb": "cancel", "execution": execution})

    def is_bound(self, sandbox: Sandbox) -> bool:
        """Whether it still serves the session it was opened for: a restarted one does not."""
        connection, hello = self._heard(sandbox, _greet(sandbox))
        connection.close()
        return hello.get("bound") is not False

    def forget(self, sandbox_id: str) -> None:
        self._kept.forget(sandbox_id)
        if sandbox_id in self._greeted:
            self._greeted.pop(sandbox_id).connection.close()

    def _simply(
        self, sandbox: Sandbox, head: protocol.Head, wait: float = 0, body: bytes = b""
    ) -> tuple[protocol.Head, protocol.Body]:
        return self._ask(sandbox, head, body, time.monotonic() + wait + _ANSWER_GRACE)

    def _ask(
        self, sandbox: Sandbox, head: protocol.Head, body: Stdin, deadline: float
    ) -> tuple[protocol.Head, protocol.Body]:
        connection, answer, answer_body = self.take(sandbox, head, body, deadline)
        self.keep(sandbox, connection)
        if answer.get("ok") is not True:
            raise self._refusal(answer)
        return answer, answer_body

    def take(
        self, sandbox: Sandbox, head: protocol.Head, body: Stdin, deadline: float
    ) -> tuple[socket.socket, protocol.Head, protocol.Body]:
        """An answer, and the connection it came on, which is the caller's to `keep` or to close."""
        kept = self._kept.take(sandbox.id) or self._met(sandbox)
        if kept is not None:
            try:
                return self._exchange(kept, head, body, deadline)
            except GuestSilent:
                self.forget(sandbox.id)
                if isinstance(body, Spooled) and body.is_gone:
                    raise  # all of it was taken: not by a dead connection
        return self._exchange(self._connect(sandbox), head, body, deadline)

    def _exchange(
        self, connection: socket.socket, head: protocol.Head, body: Stdin, deadline: float
    ) -> tuple[socket.socket, protocol.Head, protocol.Body]:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            if isinstance(body, Spooled):
                protocol.send_file(connection, head, body.file)
                body.release()
            else:
                protocol.send(connection, head, body)
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
        if answer.get("code") == "not_bound":
            connection.close()
            raise GuestSilent  # it was restarted behind our back, and knows nobody any more
        return connection, answer, answer_body

    def keep(self, sandbox: Sandbox, connection: socket.socket) -> None:
        """For the next who asks the same guest."""
        self._kept.keep(sandbox.id, connection)

    def greet(self, sandbox: Sandbox) -> None:
        """Say hello for the first who asks: by then the guest has answered, most often. See `meet`."""
        if sandbox.id not in self._greeted:
            self._greeted[sandbox.id] = _greet(sandbox)

    def meet(self, sandbox: Sandbox) -> None:
        """Nobody has asked yet: the connection is kept as any other."""
        connection = self._met(sandbox)
        if connection is not None:
            self.keep(sandbox, connection)

    def _met(self, sandbox: Sandbox) -> socket.socket | None:
        greeted = self._greeted.pop(sandbox.id, None)
        with contextlib.suppress(GuestSilent):  # who asks tries again
            return None if greeted is None else self._heard(sandbox, greeted)[0]
        return None

    def _connect(self, sandbox: Sandbox) -> socket.socket:
        return self._heard(sandbox, _greet(sandbox))[0]

    def _heard(self, sandbox: Sandbox, greeted: _Greeted) -> tuple[socket.socket, protocol.Head]:
        """What the guest says to the greeting: it must prove that it is the right one."""
        connection, nonce = greeted
        try:
            connection.settimeout(_CONNECT_SECONDS)
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
        return refusal_of(str(answer.get("code")), self._executions_max)


def _run_head(execution: str, fingerprint: str, command: Command, wait: float | None) -> protocol.Head:
    return {
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
        "open_stdin": command.open_stdin,
        "screen": command.screen,
        "again": command.again,
        "wait": wait,
    }


def _greet(sandbox: Sandbox) -> _Greeted:
    connection, nonce = dial(sandbox.address), secrets.token_hex(16)
    try:
        protocol.send(connection, {"verb": "hello", "nonce": nonce})
    except OSError as exc:
        connection.close()
        raise GuestSilent from exc
    return _Greeted(connection, nonce)


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
