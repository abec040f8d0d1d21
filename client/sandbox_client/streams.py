"""Following an execution over as many connections as it takes: no byte is lost, and none comes twice."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

from .connection import Ask
from .errors import ConnectionLost, SandboxError
from .events import Event, EventReader
from .retries import Holdout
from .session import Session
from .wire import Incoming


@dataclass(frozen=True)
class Source:
    """Where the events of one execution come from.

    With a `body` the first request starts the execution. Sent again it joins the same one, because its id is
    in the body.
    """

    session: Session
    execution_id: str
    body: Mapping[str, Any] | None = None

    async def open(self, position: int | None) -> Incoming:
        if self.body is not None and position is None:
            ask = Ask("POST", "/executions", self.body, idempotency_key=self.execution_id)
        else:
            query = {} if position is None else {"after": position}
            ask = Ask("GET", f"/executions/{self.execution_id}/events", query=query)
        return await self.session.connection.stream(await self.session.of(ask))


async def follow(source: Source, after: int | None = None) -> AsyncGenerator[Event, None]:
    """Every event once, until the end. Reconnects by itself, and gives up when nothing comes for long."""
    await source.session.open()  # which has tries of its own
    reader = EventReader(after)
    tries = Holdout(source.session.connection.patience, reached=source.body is None)
    while not reader.ended:
        try:
            incoming = await source.open(reader.position)
            try:
                reader.connected()
                while not reader.ended and (chunk := await incoming.read()):
                    for event in reader.feed(chunk):
                        tries.progress()
                        if event is not None:
                            yield event
            finally:
                await incoming.close()
            if incoming.status == 204:  # all of it had been read before
                return
            if not reader.ended:
                raise ConnectionLost("The stream of events broke off.")
        except SandboxError as error:
            pause = tries.pause(error)
            if pause is None:
                raise
            await source.session.connection.wire.sleep(pause)
