"""What both clients do, said once: `client` and `aio` only say how their methods are called.

Methods are coroutines on a wire. `twofold` turns them into plain calls where the wire blocks.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import credentials
from .commands import (
    UNSAID_TIMEOUT,
    CommandOptions,
    Shell,
    byte_count,
    command_body,
    copy,
    items,
    new_id,
    pty_body,
    said,
)
from .connection import Ask, Connection
from .errors import ConfigurationError
from .events import Event
from .execution import ExecutionHandle, kept_result
from .file_infos import SnapshotInfo
from .lifecycle import LifecycleOperations
from .results import (
    ExecutionInfo,
    ExecutionResult,
    SessionInfo,
    execution_info,
    execution_result,
    session_info,
)
from .retries import Holdout, Patience
from .session import Session
from .streams import Source, follow
from .transfers import LocalPath
from .twofold import call, iteration
from .usage import SessionMetrics, session_metrics
from .wire import Wire
from .workspace import Client, WorkspaceOperations, snapshot_id

if TYPE_CHECKING:
    from typing_extensions import Unpack  # every type checker brings it

CONNECT_TIMEOUT = 5.0
READ_TIMEOUT = 30.0
RETRIES = 3
RECONNECT_TIMEOUT = 60.0

Handle = TypeVar("Handle", bound=ExecutionHandle)
Self = TypeVar("Self", bound="Sandbox[Any, Any]")


class Sandbox(WorkspaceOperations[Client], LifecycleOperations, Generic[Handle, Client]):
    """A session on the server, opened at first use. Use SandboxClient or AsyncSandboxClient."""

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
        workspace: str | None = None,
        persist: bool | None = None,
        datasets: Sequence[str] | None = None,
        files: Sequence[LocalPath] | None = None,
        snapshot: str | SnapshotInfo | None = None,
        checkpoint: bool | None = None,
        disk: int | str | None = None,
        wait: float = 0.0,
        ephemeral: bool | None = None,
        connect_timeout: float = CONNECT_TIMEOUT,
        read_timeout: float = READ_TIMEOUT,
        retries: int = RETRIES,
        reconnect_timeout: float = RECONNECT_TIMEOUT,
    ) -> None:
        patience = Patience(connect_timeout, read_timeout, retries, reconnect_timeout)
        wanted = said(user_id=user_id, image=image, cpus=cpus, timeout=timeout, workspace=workspace)
        wanted.update(said(memory=byte_count(memory), env=copy(env), metadata=copy(metadata)))
        wanted.update(said(persist=persist, datasets=items(datasets), files=items(files)))
        wanted.update(said(checkpoint=checkpoint, disk=byte_count(disk, "disk"), ephemeral=ephemeral))
        wanted.update({} if snapshot is None else {"snapshot": snapshot_id(snapshot)})
        self._credentials = credentials.find(url, api_key, os.environ)
        self._transport = self._new_wire(self._credentials, connect_timeout)
        self._session = Session(Connection(self._transport, patience), wanted, wait)

    @classmethod
    def attach(
        cls: type[Self],
        session_id: str,
        *,
        url: str | None = None,
        api_key: str | None = None,
        connect_timeout: float = CONNECT_TIMEOUT,
        read_timeout: float = READ_TIMEOUT,
        retries: int = RETRIES,
        reconnect_timeout: float = RECONNECT_TIMEOUT,
    ) -> Self:
        """A client for a session that is open already. Leaving its block leaves the session open."""
        client = cls(
            url=url,
            api_key=api_key,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            retries=retries,
            reconnect_timeout=reconnect_timeout,
        )
        client._session.adopt(session_id)
        return client

    def __repr__(self) -> str:
        state = "closed" if self._session.closed else self._session.id or "not open yet"
        return f"<{type(self).__name__} {self._transport.url} session: {state}>"

    @call
    async def execute(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        shell: str | Shell | None = Shell.MAIN,
        language: str | None = None,
        check: bool = False,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
    ) -> ExecutionResult:
        """Run a shell command, or an argv list, and wait for its result.

        Commands share one shell: `cd`, variables and functions last. Another name in `shell` is another
        shell, `shell=None` a process of its own beside everything else. Any exit code is a result; with
        `check=True` one that is not `ok` raises CommandFailed. `on_stdout` and `on_stderr` are called with
        pieces of text as they come.
        """
        body = command_body(
            command, cwd=cwd, env=env, stdin=stdin, timeout=timeout, shell=shell, language=language
        )
        if on_stdout is None and on_stderr is None:
            result = await self._run(body, timeout)
        else:
            result = await self._watch(body, {"stdout": on_stdout, "stderr": on_stderr})
        return result.check() if check else result

    @call
    async def run_python(
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
        body = command_body(code, cwd=cwd, env=env, stdin=stdin, timeout=timeout, language="python")
        result = await self._run(body, timeout)
        return result.check() if check else result

    @iteration
    def stream(
        self,
        command: str | Sequence[str],
        *,
        pty: tuple[int, int] | None = None,
        kill_on_disconnect: bool = False,
        **options: Unpack[CommandOptions],
    ) -> AsyncGenerator[Event, None]:
        """Run a command, and get its output as it comes: `for event in sandbox.stream("make test"): ...`

        The options are those of `execute`; `pty=(columns, rows)` runs it on a terminal. A connection that
        breaks is made anew, and no byte is lost or comes twice. Leaving the loop hangs up; the command goes
        on, unless `kill_on_disconnect=True`.
        """
        body = {**command_body(command, **options), **pty_body(pty), "stream": True}
        if kill_on_disconnect:
            body["kill_on_disconnect"] = True
        return follow(self._source(body))

    @call
    async def start(
        self,
        command: str | Sequence[str],
        *,
        pty: tuple[int, int] | None = None,
        **options: Unpack[CommandOptions],
    ) -> Handle:
        """Start a command in the background, as a process of its own unless you name a `shell`.

        The options are those of `execute`, and `stdin=PIPE` for input that you send later; `pty=(columns,
        rows)` runs it on a terminal. It goes on until it ends, is killed, or its timeout or session is over.
        """
        body = {**command_body(command, **options), **pty_body(pty), "background": True}
        body["execution_id"] = execution_id = new_id()
        await self._session.ask(Ask("POST", "/executions", body, idempotency_key=execution_id))
        return self._new_handle(execution_id)

    def execution(self, execution_id: str) -> Handle:
        """A handle on an execution of this session. Asks nothing of the server."""
        return self._new_handle(execution_id)

    @call
    async def executions(self) -> list[ExecutionInfo]:
        """What runs in this session, and what ran lately; oldest first."""
        answer = await self._session.ask(Ask("GET", "/executions"))
        return [execution_info(item) for item in answer.get("executions") or ()]

    @call
    async def extend(self, timeout: float | None = None) -> SessionInfo:
        """Renew the lease from now, with a new `timeout` if you give one."""
        return session_info(await self._session.ask(Ask("POST", "/extend", said(timeout=timeout))))

    @call
    async def info(self) -> SessionInfo:
        """The session as the server sees it now."""
        return session_info(await self._session.ask(Ask("GET", "")))

    @call
    async def metrics(self, seconds: float | None = None) -> SessionMetrics:
        """What the session uses now, and samples of the last hour, or of so many `seconds`."""
        return session_metrics(await self._session.ask(Ask("GET", "/metrics", query=said(seconds=seconds))))

    @call
    async def list_sessions(
        self, user_id: str | None = None, metadata: Mapping[str, str] | None = None
    ) -> list[SessionInfo]:
        """Your open sessions, all of them or those that match. Opens none."""
        query = {f"metadata.{name}": value for name, value in (metadata or {}).items()}
        query.update(said(user_id=user_id))
        found: list[SessionInfo] = []
        while True:
            page = await self._session.connection.ask(Ask("GET", "/v1/sessions", query=query))
            found += [session_info(item) for item in page.get("sessions") or ()]
            if not page.get("next_cursor"):
                return found
            query["cursor"] = page["next_cursor"]

    @call
    async def limits(self, user_id: str | None = None) -> dict[str, Any]:
        """Where you stand: quotas and rates, each with `used` and `allowed`; a user's, too. Opens nothing."""
        return await self._session.connection.ask(Ask("GET", "/v1/limits", query=said(user_id=user_id)))

    @call
    async def close(self) -> None:
        """End the session, whoever opened it. Again, or when it is gone already, is fine.

        Leaving the block is gentler: it ends only a session that this client created.
        """
        await self._session.end()

    def _new_wire(self, found: credentials.Credentials, connect_timeout: float) -> Wire:
        raise NotImplementedError  # the two clients differ in this,

    def _new_handle(self, execution_id: str) -> Handle:
        raise NotImplementedError  # and in this

    def _forked(self, session_id: str) -> Any:
        patience = self._session.connection.patience
        client = type(self).attach(
            session_id,
            url=self._credentials.url,
            api_key=self._credentials.api_key,
            connect_timeout=patience.connect_timeout,
            read_timeout=patience.read_timeout,
            retries=patience.retries,
            reconnect_timeout=patience.reconnect_timeout,
        )
        client._session.adopt(session_id, created=True)
        return client

    async def _run(self, body: Mapping[str, Any], timeout: float | None) -> ExecutionResult:
        work_time = UNSAID_TIMEOUT if timeout is None else max(0.0, timeout)
        ask = Ask("POST", "/execute", body, idempotency_key=new_id(), work_time=work_time)
        return execution_result(await self._session.ask(ask))

    async def _watch(
        self, body: dict[str, Any], watchers: Mapping[str, Callable[[str], object] | None]
    ) -> ExecutionResult:
        if self._session.is_ephemeral:
            raise ConfigurationError("An ephemeral sandbox is gone with its command: use stream().")
        source = self._source({**body, "stream": True})
        events = follow(source)
        try:
            async for event in events:
                watcher = watchers.get(event.kind)
                told = watcher(event.text) if watcher is not None and event.text else None
                if inspect.isawaitable(told):
                    await told
        finally:
            await events.aclose()
        # The stream's end has no output; the execution's result has it as an answer without watchers would.
        tries = Holdout(self._session.connection.patience, reached=True)
        answer = await self._session.ask(Ask("GET", f"/executions/{source.execution_id}"), tries)
        return kept_result(execution_info(answer))

    def _source(self, body: dict[str, Any]) -> Source:
        execution_id = new_id()
        return Source(self._session, execution_id, {**body, "execution_id": execution_id})
