"""The one session that a client has: opened at first use, asked through, and left."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from .commands import checked_session_id, new_id
from .connection import Ask, Connection
from .errors import ClientClosed, SandboxError, SessionEnded, SessionNotFound
from .results import session_info
from .retries import Tries
from .uploads import file_ids

_ONCE = ("image", "memory", "cpus", "disk", "env", "snapshot", "datasets", "files")
OPENING_TIME = 60.0  # a server under load may take this long to start a sandbox


class Session:
    """A session that is wanted, open, or over. Whoever shares a client shares it."""

    def __init__(self, connection: Connection, wanted: Mapping[str, Any], wait: float = 0.0) -> None:
        self.connection = connection
        self._wait = wait
        self._wanted = dict(wanted)
        self._lock = connection.wire.lock()  # guards the three below
        self.id: str | None = None
        self.closed = False
        self._created = False

    def adopt(self, session_id: str, created: bool = False) -> None:
        """Use a session that is open already; `created` says that it was opened for this client."""
        self.id = checked_session_id(session_id)
        self._created = created

    async def open(self) -> str:
        """Its id; asks for a session where there is none yet."""
        async with self._lock:
            if self.closed:
                raise ClientClosed("This client is closed. Make a new one.")
            if self.id is None:
                session = session_info(await self._create())
                self.id = checked_session_id(session.session_id)
                self._created = session.status == "created"
            return self.id

    @property
    def is_ephemeral(self) -> bool:
        """It is over with its first command."""
        return bool(self._wanted.get("ephemeral"))

    async def wanted_once(self) -> dict[str, Any]:
        """What is wanted of a sandbox for one command: all that is not about a session."""
        await self._send_files()
        return {name: self._wanted[name] for name in _ONCE if name in self._wanted}

    async def ask(self, ask: Ask, tries: Tries | None = None) -> dict[str, Any]:
        """Ask something of the session: the path is what follows its own."""
        return await self.connection.ask(await self.of(ask), tries)

    async def of(self, ask: Ask) -> Ask:
        """The same, asked of this session."""
        return ask.under(f"/v1/sessions/{await self.open()}")

    async def end(self) -> None:
        """End it on the server, whoever opened it."""
        await self._leave(end=True)

    async def leave(self, error: BaseException | None) -> None:
        """Leave a block, ending the session if it was opened for it."""
        if error is None:
            await self._leave(end=self._created)
            return
        # What went wrong in the block matters more than a failure to close: the lease ends the session.
        with contextlib.suppress(SandboxError):
            await self._leave(end=self._created)

    async def _create(self) -> dict[str, Any]:
        await self._send_files()
        query = {"wait": self._wait} if self._wait else None
        time = OPENING_TIME + self._wait
        return await self.connection.ask(
            Ask("POST", "/v1/sessions", self._wanted, query, idempotency_key=new_id(), work_time=time)
        )

    async def _send_files(self) -> None:
        if self._wanted.get("files"):
            self._wanted["files"] = await file_ids(self.connection, self._wanted["files"])

    async def _leave(self, end: bool) -> None:
        async with self._lock:
            try:
                if end and self.id is not None and not self.closed:
                    with contextlib.suppress(SessionNotFound, SessionEnded):
                        await self.connection.ask(Ask("DELETE", f"/v1/sessions/{self.id}"))
                self.closed = True  # not when the DELETE failed: then it can be tried again
            finally:
                await self.connection.wire.hang_up()
