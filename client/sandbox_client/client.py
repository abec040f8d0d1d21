"""SandboxClient: one session on the server, opened at first use, closed when you leave."""

from __future__ import annotations

from types import TracebackType

from .credentials import Credentials
from .execution import ExecutionHandle
from .files import FileOperations
from .sandbox import Sandbox
from .twofold import Blocking, run
from .wire_requests import RequestsWire


class Execution(ExecutionHandle, Blocking):
    """A command that runs, or ran, in a session. It goes on without this object, and without this client."""


class Files(FileOperations, Blocking):
    """The files of a sandbox: see FileOperations."""


class SandboxClient(Sandbox[Execution, "SandboxClient"], Blocking):
    """A sandbox of your own, for as long as the block lasts.

        with SandboxClient() as sandbox:
            result = sandbox.execute("ls -la")
            print(result.output, result.exit_code)

    The server and key come from `url` and `api_key`, else SANDBOX_URL and SANDBOX_API_KEY, else what
    quickstart wrote. With `user_id` you get that user's session if there is one already, and leaving the
    block then leaves it open. Threads may share a client.

    `memory` and `disk` are in bytes or like "512m"; `workspace` is a name under which the files outlive the
    session, or `persist=True` the user's; `snapshot` is where they begin; `checkpoint=True` keeps them before
    each execution, for `undo`; `datasets` are mounted below /data; `files` are put into /workspace: ids of
    uploads, or files of this machine that are uploaded first. `wait` is how many seconds to wait in line for
    a place, where the server or your quota has none. `timeout` is how many seconds the session
    outlives its last use; `ephemeral=True` ends it with its first command; `read_timeout` is how long to wait
    for an answer on top of a command's own timeout; `reconnect_timeout` is how long to follow an execution,
    without success, whose connection broke.
    """

    _transport: RequestsWire

    def __enter__(self) -> SandboxClient:
        run(self._session.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(self._session.leave(error))

    @property
    def session_id(self) -> str:
        """The session's id, good for `attach`. Opens the session if it is not open yet."""
        return self._session.id or run(self._session.open())

    @property
    def files(self) -> Files:
        """The files of the sandbox, one by one. `upload` and `download` move whole directories."""
        return Files(self._session)

    def _new_wire(self, found: Credentials, connect_timeout: float) -> RequestsWire:
        return RequestsWire(found, connect_timeout)

    def _new_handle(self, execution_id: str) -> Execution:
        return Execution(self._session, execution_id)
