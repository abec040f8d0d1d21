"""Changes below a directory, as they happen."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from . import paths
from .connection import Ask
from .contents import Place, about
from .errors import ConnectionLost, SandboxError, UnexpectedAnswer
from .file_infos import FileEvent, RemotePath, file_event
from .http import problem
from .retries import Holdout
from .wire import Incoming

START, OVERFLOW, END = "start", "overflow", "end"
CHANGES = ("created", "modified", "deleted", "moved", "attributes", OVERFLOW)


async def changes(place: Place, path: RemotePath, recursive: bool) -> AsyncGenerator[FileEvent, None]:
    """A start, and every change from then on. What a broken connection may have missed is an overflow."""
    query = {"path": paths.raw(path), **({"recursive": "true"} if recursive else {})}
    ask = await place.of(Ask("GET", "/files/watch", query=query))
    tries = Holdout(place.connection.patience)
    connected_before = False
    while True:
        try:
            with about(path):
                incoming = await place.connection.stream(ask)
            try:
                yield FileEvent(OVERFLOW if connected_before else START, paths.text_of(path), directory=True)
                connected_before = True
                async for fields in _lines(incoming):
                    tries.progress()
                    kind = fields.get("type") or fields.get("event")
                    if kind == END:
                        return
                    if kind in CHANGES:
                        yield file_event(fields)
            finally:
                await incoming.close()
            raise ConnectionLost("The stream of changes broke off.")
        except SandboxError as error:
            pause = tries.pause(error)
            if pause is None:
                raise
            await place.connection.wire.sleep(pause)


async def _lines(incoming: Incoming) -> AsyncGenerator[Mapping[str, Any], None]:
    rest = b""
    while piece := await incoming.read():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.strip():
                yield _parsed(line)


def _parsed(line: bytes) -> Mapping[str, Any]:
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise UnexpectedAnswer("The server sent a change that cannot be read.")
    if isinstance(fields.get("problem"), dict):
        raise problem(fields["problem"], fields["problem"].get("status"), {})
    return fields
