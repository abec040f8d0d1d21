"""SandboxClient: one session on the server, opened at first use, closed when you leave."""

from __future__ import annotations

from types import TracebackType

from .credentials import Credentials
from .execution import ExecutionHandle
from .sandbox import Sandbox
from .twofold import Blocking, run
from .wire_requests import RequestsWire


class Execution(ExecutionHandle, Blocking):
    """A command that runs, or ran, in a session. It goes on without this object, and without this client."""


class SandboxClient(Sandbox[Execution], Blocking):
    """A sandbox of your own, for as long as the block lasts.

        with SandboxClient() as sandbox:
            result = sandbox.execute("ls -la")
            print(result.output, result.exit_code)

    The server and key come from `url` and `api_key`, else SANDBOX_URL and SANDBOX_API_KEY, else what
    quickstart wrote. With `user_id` you get that user's session if there is one already, and leaving the
    block then leaves it open. Threads may share a client.

    `memory` is in bytes or like "512m"; `timeout` is how many seconds the session outlives its last use;
    `read_timeout` is how long to wait for an answer on top of a command's own timeout; `reconnect_timeout` is
    how long to follow an execution, without success, whose connection broke.
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

    def _new_wire(self, found: Credentials, connect_timeout: float) -> RequestsWire:
        return RequestsWire(found, connect_timeout)

    def _new_handle(self, execution_id: str) -> Execution:
        return Execution(self._session, execution_id)
