"""A sandbox's sleep, and sandboxes for one command, for both clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .commands import UNSAID_TIMEOUT, command_body, new_id, said
from .connection import Ask
from .results import ExecutionResult, SessionInfo, execution_result, session_info
from .session import OPENING_TIME, Session
from .twofold import call


class LifecycleOperations:
    """The part of a sandbox that is about being awake. A session that nobody uses falls asleep by itself."""

    _session: Session

    @call
    async def pause(self, *, cold: bool = False) -> SessionInfo:
        """Freeze all that runs in the session, at once. The next call wakes it, as if nothing had been.

        With `cold=True` the server gives up its sandbox, too: what runs ends; the files, and the main shell's
        directory and exported variables, are there again at the next call.
        """
        body = {"cold": True} if cold else {}
        return session_info(await self._session.ask(_lifecycle("/pause", body)))

    @call
    async def resume(self) -> SessionInfo:
        """Wake the session now rather than with the next call."""
        return session_info(await self._session.ask(_lifecycle("/resume", {})))

    @call
    async def state(self) -> str:
        """One of "running", "paused", "cold". Looking does not wake it; `info()` tells why and since when."""
        return session_info(await self._session.ask(Ask("GET", ""))).state or ""

    @call
    async def run_once(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        language: str | None = None,
        check: bool = False,
    ) -> ExecutionResult:
        """Run one command in a fresh sandbox of its own, which is gone afterwards. Opens no session.

        The sandbox is as this client would have it: `image`, `memory`, `cpus`, `disk`, `env`, `snapshot`,
        `datasets` and `files`. If the answer is lost on its way, the command is not run again: SessionEnded.
        """
        wanted = await self._session.wanted_once()
        wanted_env = {**wanted.pop("env", {}), **(env or {})}
        body = command_body(command, cwd=cwd, env=wanted_env, stdin=stdin, timeout=timeout, language=language)
        work_time = OPENING_TIME + (UNSAID_TIMEOUT if timeout is None else max(0.0, timeout))
        ask = Ask("POST", "/run", {**wanted, **body}, idempotency_key=new_id(), work_time=work_time)
        result = execution_result(await self._session.connection.ask(ask))
        return result.check() if check else result


def _lifecycle(path: str, body: dict[str, bool]) -> Ask:
    return Ask("POST", path, said(**body), work_time=OPENING_TIME, safe=True)
