"""SandboxClient: one session on the server, opened at first use, closed when you leave."""

from __future__ import annotations

import base64
import contextlib
import enum
import os
import re
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from . import credentials
from .errors import ClientClosed, ConfigurationError, SandboxError, SessionEnded, SessionNotFound
from .http import Patience, Transport
from .results import ExecutionResult, SessionInfo, execution_result, session_info

CONNECT_TIMEOUT = 5.0
READ_TIMEOUT = 30.0
RETRIES = 3
OPENING_TIME = 60.0  # a server under load may take this long to start a sandbox
UNSAID_TIMEOUT = 600.0  # without a timeout the server's own default holds: wait longer than any sensible one

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class _Shell(enum.Enum):
    MAIN = "main"


class SandboxClient:
    """A sandbox of your own, for as long as the block lasts.

        with SandboxClient() as sandbox:
            result = sandbox.execute("ls -la")
            print(result.output, result.exit_code)

    The server and key come from `url` and `api_key`, else SANDBOX_URL and SANDBOX_API_KEY, else what
    quickstart wrote. With `user_id` you get that user's session if there is one already, and leaving the
    block then leaves it open. Threads may share a client.

    `memory` is in bytes or like "512m"; `timeout` is how many seconds the session outlives its last use;
    `read_timeout` is how long to wait for an answer on top of a command's own timeout.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        api_key: str | None = None,
        user_id: str | None = None,
        image: str | None = None,
        memory: int | str | None = None,
        cpus: float | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        connect_timeout: float = CONNECT_TIMEOUT,
        read_timeout: float = READ_TIMEOUT,
        retries: int = RETRIES,
    ) -> None:
        patience = Patience(connect_timeout, read_timeout, retries)
        self._transport = Transport(credentials.find(url, api_key, os.environ), patience)
        self._wanted = _said(user_id=user_id, image=image, cpus=cpus, timeout=timeout)
        self._wanted.update(_said(memory=_bytes(memory), env=_copy(env), metadata=_copy(metadata)))
        self._lock = threading.Lock()  # guards the three below
        self._session_id: str | None = None
        self._created = False
        self._closed = False

    @classmethod
    def attach(
        cls,
        session_id: str,
        *,
        url: str | None = None,
        api_key: str | None = None,
        connect_timeout: float = CONNECT_TIMEOUT,
        read_timeout: float = READ_TIMEOUT,
        retries: int = RETRIES,
    ) -> SandboxClient:
        """A client for a session that is open already. Leaving its block leaves the session open."""
        client = cls(
            url=url,
            api_key=api_key,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            retries=retries,
        )
        client._session_id = _checked_id(session_id)
        return client

    def __enter__(self) -> SandboxClient:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._leave(end=self._created)
            return
        # What went wrong in the block matters more than a failure to close: the lease ends the session.
        with contextlib.suppress(SandboxError):
            self._leave(end=self._created)

    def __repr__(self) -> str:
        state = "closed" if self._closed else self._session_id or "not open yet"
        return f"<SandboxClient {self._transport.url} session: {state}>"

    @property
    def session_id(self) -> str:
        """The session's id, good for `attach`. Opens the session if it is not open yet."""
        return self._session_id or self._open()

    def execute(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        shell: str | _Shell | None = _Shell.MAIN,
        language: str | None = None,
        check: bool = False,
    ) -> ExecutionResult:
        """Run a shell command, or an argv list, and wait for its result.

        Commands share one shell: `cd`, variables and functions last. Another name in `shell` is another
        shell, `shell=None` a process of its own beside everything else. Any exit code is a result; with
        `check=True` one that is not `ok` raises CommandFailed.
        """
        body = _said(cwd=cwd, env=_copy(env), timeout=timeout, language=language)
        body["command"] = command if isinstance(command, str) else list(command)
        if isinstance(stdin, bytes):
            body["stdin_base64"] = base64.b64encode(stdin).decode()
        elif stdin is not None:
            body["stdin"] = stdin
        if not isinstance(shell, _Shell):
            body["shell"] = shell
        result = execution_result(self._run(body, timeout))
        return result.check() if check else result

    def run_python(
        self,
        code: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        check: bool = False,
    ) -> ExecutionResult:
        """Run Python in the session's own interpreter: variables and imports last between calls.

        `value` is the repr of the last expression; an exception is in `error`.
        """
        return self.execute(
            code, cwd=cwd, env=env, stdin=stdin, timeout=timeout, language="python", check=check
        )

    def extend(self, timeout: float | None = None) -> SessionInfo:
        """Renew the lease from now, with a new `timeout` if you give one."""
        path = f"/v1/sessions/{self._open()}/extend"
        return session_info(self._transport.request("POST", path, body=_said(timeout=timeout)))

    def info(self) -> SessionInfo:
        """The session as the server sees it now."""
        return session_info(self._transport.request("GET", f"/v1/sessions/{self._open()}"))

    def list_sessions(
        self, user_id: str | None = None, metadata: Mapping[str, str] | None = None
    ) -> list[SessionInfo]:
        """Your open sessions, all of them or those that match. Opens none."""
        query = {f"metadata.{name}": value for name, value in (metadata or {}).items()}
        query.update(_said(user_id=user_id))
        found: list[SessionInfo] = []
        while True:
            page = self._transport.request("GET", "/v1/sessions", query=query)
            found += _each(page.get("sessions"))
            if not page.get("next_cursor"):
                return found
            query["cursor"] = page["next_cursor"]

    def close(self) -> None:
        """End the session, whoever opened it. Again, or when it is gone already, is fine.

        Leaving the `with` block is gentler: it ends only a session that this client created.
        """
        self._leave(end=True)

    def _open(self) -> str:
        with self._lock:
            if self._closed:
                raise ClientClosed("This client is closed. Make a new SandboxClient.")
            if self._session_id is None:
                session = session_info(self._create())
                self._session_id = _checked_id(session.session_id)
                self._created = session.status == "created"
            return self._session_id

    def _create(self) -> dict[str, Any]:
        return self._transport.request(
            "POST", "/v1/sessions", body=self._wanted, idempotency_key=_new_key(), work_time=OPENING_TIME
        )

    def _run(self, body: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        return self._transport.request(
            "POST",
            f"/v1/sessions/{self._open()}/execute",
            body=body,
            idempotency_key=_new_key(),
            work_time=UNSAID_TIMEOUT if timeout is None else max(0.0, timeout),
        )

    def _leave(self, end: bool) -> None:
        with self._lock:
            try:
                if end and self._session_id is not None and not self._closed:
                    with contextlib.suppress(SessionNotFound, SessionEnded):
                        self._transport.request("DELETE", f"/v1/sessions/{self._session_id}")
                self._closed = True  # not when the DELETE failed: then close() can be called again
            finally:
                self._transport.close()


def _said(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _copy(pairs: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if pairs is None else dict(pairs)


def _each(items: Iterable[Mapping[str, Any]] | None) -> list[SessionInfo]:
    return [session_info(item) for item in items or ()]


def _new_key() -> str:
    return uuid.uuid4().hex


def _checked_id(session_id: str) -> str:
    # It becomes part of a path.
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,200}", session_id):
        raise ConfigurationError(f"Not a session id: {session_id[:80]!r}.")
    return session_id


def _bytes(size: int | str | None) -> int | None:
    if not isinstance(size, str):
        return size
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", size.strip().lower())
    if match is None:
        raise ConfigurationError(f'memory must be bytes or like "512m" or "2g", not {size!r}.')
    return int(float(match[1]) * _UNITS[match[2]])
