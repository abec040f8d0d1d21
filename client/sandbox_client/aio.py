"""AsyncSandboxClient: the same with await. Needs httpx: pip install './client[async]'."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from .credentials import Credentials
from .errors import ConfigurationError
from .execution import ExecutionHandle
from .files import FileOperations
from .sandbox import Sandbox
from .twofold import Awaiting

if TYPE_CHECKING:
    from .wire_httpx import HttpxWire


class AsyncExecution(ExecutionHandle, Awaiting):
    """A command that runs, or ran, in a session. It goes on without this object, and without this client."""


class AsyncFiles(FileOperations, Awaiting):
    """The files of a sandbox: see FileOperations."""


class AsyncSandboxClient(Sandbox[AsyncExecution, "AsyncSandboxClient"], Awaiting):
    """A sandbox of your own, for as long as the block lasts.

        async with AsyncSandboxClient() as sandbox:
            result = await sandbox.execute("ls -la")
            print(result.output, result.exit_code)

    Options and methods are those of SandboxClient. Tasks of one event loop may share a client. The functions
    given to `execute` may be coroutine functions.
    """

    async def __aenter__(self) -> AsyncSandboxClient:
        await self._session.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.leave(error)

    @property
    def session_id(self) -> str:
        """The session's id, good for `attach`. There is one inside the block, or after the first call."""
        if self._session.id is None:
            raise ConfigurationError("No session is open yet. Use `async with`, or await a call first.")
        return self._session.id

    @property
    def files(self) -> AsyncFiles:
        """The files of the sandbox, one by one. `upload` and `download` move whole directories."""
        return AsyncFiles(self._session)

    def _new_wire(self, found: Credentials, connect_timeout: float) -> HttpxWire:
        try:
            from .wire_httpx import HttpxWire
        except ImportError as exc:
            raise ConfigurationError(
                f"AsyncSandboxClient needs httpx ({exc}): pip install './client[async]', or httpx itself."
            ) from exc
        return HttpxWire(found, connect_timeout)

    def _new_handle(self, execution_id: str) -> AsyncExecution:
        return AsyncExecution(self._session, execution_id)
