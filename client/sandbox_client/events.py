"""Events of an execution, read from bytes that may be cut anywhere. Nothing here touches the network."""

from __future__ import annotations

import base64
import codecs
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import UnexpectedAnswer
from .http import problem
from .records import Record
from .results import ExecutionResult, execution_result

OUTPUT = ("stdout", "stderr")


@dataclass(frozen=True)
class Event(Record):
    """Something that happened in an execution.

    `kind` is "start", "stdout", "stderr", "gap" or "end". `seq` is the position in the output, in bytes,
    after this event. `data` are the very bytes; `text` is the same as text, in which a character that came in
    two pieces stands whole in the event with its second piece. A gap stands for `missing` bytes that the
    server no longer has. The end has the `result`, without the output.
    """

    kind: str
    seq: int
    data: bytes = b""
    text: str = ""
    result: ExecutionResult | None = None
    execution_id: str | None = field(default=None, repr=False)
    missing: int = 0


class EventReader:
    """Turns the lines of one stream after the other into events, each byte once.

    `position` is where the next connection goes on; None until anything came.
    """

    def __init__(self, after: int | None = None) -> None:
        self.position = after
        self.ended = False
        self._rest = b""
        self._decoders = {kind: _decoder() for kind in OUTPUT}

    def connected(self) -> None:
        """A new connection: half a line of the last one is of no use."""
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[Event | None]:
        """The events that are whole now; None for a mere sign of life."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield from self._read(_parsed(line))

    def _read(self, fields: Mapping[str, Any]) -> Iterator[Event | None]:
        kind, seq = fields["event"], fields["seq"]
        if kind in OUTPUT:
            yield from self._output(kind, seq, _bytes(fields))
        elif kind == "end":
            yield from self._flush()
            self.ended = True
            yield Event(kind, seq, result=execution_result(fields.get("result") or {}))
        elif kind == "gap":
            yield from self._flush()
            start, self.position = self.position or 0, seq
            yield Event(kind, seq, missing=seq - start)
        elif kind == "start" and self.position is None:
            self.position = 0
            yield Event(kind, seq, execution_id=fields.get("execution_id"))
        elif kind == "problem":
            raise problem(fields.get("problem") or {}, (fields.get("problem") or {}).get("status"), {})
        else:
            yield None  # a keepalive, or what a newer server may say

    def _output(self, kind: str, seq: int, data: bytes) -> Iterator[Event | None]:
        position = self.position or 0
        if seq - len(data) > position:
            raise UnexpectedAnswer(f"The stream jumped from byte {position} to {seq - len(data)}.")
        fresh = data[len(data) - (seq - position) :] if seq > position else b""
        if fresh:
            self.position = seq
            yield Event(kind, seq, fresh, self._decoders[kind].decode(fresh))

    def _flush(self) -> Iterator[Event]:
        """What stays a broken character shows as one."""
        for kind, decoder in self._decoders.items():
            text = decoder.decode(b"", final=True)
            if text:
                yield Event(kind, self.position or 0, text=text)


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")(errors="replace")


def _bytes(fields: Mapping[str, Any]) -> bytes:
    encoded = fields.get("base64")
    return str(fields.get("text", "")).encode() if encoded is None else base64.b64decode(encoded)


def _parsed(line: bytes) -> Mapping[str, Any]:
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or not isinstance(fields.get("seq"), int) or "event" not in fields:
        raise UnexpectedAnswer("The server sent an event that cannot be read.")
    return fields
