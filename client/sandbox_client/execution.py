"""A handle on one execution, for both clients."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from .commands import base64_of, checked_execution_id
from .connection import Ask
from .errors import Conflict, StillRunning
from .events import Event
from .results import ExecutionInfo, ExecutionResult, execution_info
from .retries import Holdout
from .streams import Source, follow
from .twofold import call, iteration

if TYPE_CHECKING:
    from typing import Literal

    from .session import Session
    from .wire import Answer

WAIT_STEP = 60.0  # the longest that one request waits for an end
KILL_TIME = 60.0  # the server answers a kill when all processes are gone
INPUT_STEP = 256 * 1024  # bytes of input in one request


class ExecutionHandle:
    """A command that runs, or ran, in a session. It goes on without this object, and without this client."""

    def __init__(self, session: Session, execution_id: str) -> None:
        self._session = session
        self.id = checked_execution_id(execution_id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    @property
    def execution_id(self) -> str:
        """The same as `id`, by the name that results have for it."""
        return self.id

    @call
    async def wait(self, timeout: float | None = None) -> ExecutionResult:
        """Its result, when it is over. Raises StillRunning if it is not over after `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = WAIT_STEP if until is None else min(WAIT_STEP, max(0.0, until - time.monotonic()))
            info = await self._info(round(left, 3), reached=True)
            if info.ended:
                return kept_result(info)
            if until is not None and time.monotonic() >= until:
                raise StillRunning(f"Execution {self.id} is still {info.status} after {timeout:g} s.")

    @call
    async def info(self) -> ExecutionInfo:
        """The execution as the server sees it now, with its result if it is over."""
        return await self._info(0)

    @iteration
    def events(self, after: int | None = None) -> AsyncGenerator[Event, None]:
        """Every event from the start, or those behind position `after`, until it ends. See `stream`."""
        return follow(Source(self._session, self.id), after)

    @call
    async def log_bytes(self, stream: Literal["stdout", "stderr"] | None = None) -> bytes:
        """All it has written so far, as far as the server keeps it; both streams in order, or one of them."""
        return (await self._log(stream)).content

    @call
    async def logs(self, stream: Literal["stdout", "stderr"] | None = None) -> str:
        """The same as text, with a line that says so where bytes are no longer kept."""
        return log_text(await self._log(stream))

    @call
    async def send_input(self, data: str | bytes) -> None:
        """Write to its stdin, which must have been started as PIPE, or type on its terminal.

        Waits while the program is busy with what it was sent before, and raises StdinFull if that takes long.
        """
        raw = data.encode() if isinstance(data, str) else data
        for start in range(0, len(raw), INPUT_STEP):
            await self._post("input", data_base64=base64_of(raw[start : start + INPUT_STEP]))

    @call
    async def close_input(self) -> None:
        """Close its stdin: it reads the end of the file."""
        await self._post("input", close=True)

    @call
    async def signal(self, signal: str | int) -> None:
        """Send a signal such as "SIGINT", to the program and its children."""
        await self._post("signal", signal=signal)

    @call
    async def resize(self, cols: int, rows: int) -> None:
        """Give its terminal another size."""
        await self._post("resize", cols=cols, rows=rows)

    @call
    async def kill(self) -> None:
        """End it, with all its children. Returns when they are gone; fine if it had ended before."""
        await self._session.ask(Ask("DELETE", f"/executions/{self.id}", work_time=KILL_TIME))

    async def _info(self, wait: float, reached: bool = False) -> ExecutionInfo:
        patience = self._session.connection.patience
        tries = Holdout(patience, reached=reached, within=max(wait, patience.connect_timeout))
        query = {"wait": wait} if wait else None
        ask = Ask("GET", f"/executions/{self.id}", query=query, work_time=wait)
        return execution_info(await self._session.ask(ask, tries))

    async def _log(self, stream: str | None) -> Answer:
        ask = Ask("GET", f"/executions/{self.id}/log", query={"stream": stream} if stream else None)
        return await self._session.connection.answer(await self._session.of(ask))

    async def _post(self, verb: str, **body: Any) -> None:
        tries = Holdout(self._session.connection.patience, repeatable=False)
        await self._session.ask(Ask("POST", f"/executions/{self.id}/{verb}", body), tries)


def log_text(log: Answer) -> str:
    """There is one range of bytes at most that is missing; of a single stream it is not known where."""
    said = re.fullmatch(r"(\d+)-(\d+)", log.headers.get("X-Log-Missing", ""))
    if said is None:
        return log.content.decode(errors="replace")
    begin, end = int(said[1]), int(said[2])
    whole = int(log.headers.get("X-Log-Bytes", 0)) == len(log.content) + end - begin
    mark = f"\n... {end - begin} bytes omitted ...\n" if whole else "\n... some bytes omitted ...\n"
    cut = begin if whole else len(log.content)
    return log.content[:cut].decode(errors="replace") + mark + log.content[cut:].decode(errors="replace")


def kept_result(info: ExecutionInfo) -> ExecutionResult:
    """The result of an execution that has ended, if the server still has it."""
    if info.result is None:
        raise Conflict(
            f"Execution {info.execution_id} has ended, but its result is no longer kept. Its log may be.",
            code="result_forgotten",
        )
    return info.result
