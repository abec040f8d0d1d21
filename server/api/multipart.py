"""multipart/form-data as it comes in: files in pieces, none of them held. See docs/adr/0013-uploads.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

from flask import request
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.sansio.multipart import Data, Epilogue, Event, Field, File, MultipartDecoder, NeedData

from server.api.problems import Refusal
from server.errors import Invalid
from server.uploads import MOST_FILES

_BUFFER = 1 << 20  # what a part's headers, and what precedes and follows the parts, may take
_LONGEST_BOUNDARY = 70


@dataclass(frozen=True)
class Begin:
    """A file of that name begins; what follows is its bytes."""

    name: str
    mime: str


@dataclass(frozen=True)
class End:
    """All bytes of the file have come."""


def boundary() -> bytes:
    if request.mimetype != "multipart/form-data":
        raise Refusal("unsupported_media_type", "Send files as multipart/form-data.")
    text = request.mimetype_params.get("boundary", "")
    if not text or len(text) > _LONGEST_BOUNDARY or not text.isascii() or not text.isprintable():
        raise Invalid("Content-Type", "It must name the boundary between the parts: 1 to 70 characters.")
    return text.encode()


def files_in(pieces: Iterable[bytes], between: bytes) -> Iterator[Begin | bytes | End]:
    """For each file a Begin, its bytes, and an End. Raises Invalid for what is no such body."""
    for event in _events(pieces, MultipartDecoder(between, _BUFFER, max_parts=MOST_FILES)):
        if isinstance(event, Field):
            name = str(event.name or "")[:200]
            raise Invalid(name or "body", f"There is no field '{name}': every part is to be a file.")
        if isinstance(event, File):
            yield Begin(event.filename, event.headers.get("Content-Type", ""))
        if isinstance(event, Data):
            yield event.data
            if not event.more_data:
                yield End()


def _events(pieces: Iterable[bytes], decoder: MultipartDecoder) -> Iterator[Event]:
    for piece in chain(pieces, [None]):
        with _understood():
            decoder.receive_data(piece)
        while True:
            with _understood():
                event = decoder.next_event()
            if isinstance(event, NeedData):
                break
            yield event
            if isinstance(event, Epilogue):
                return


@contextmanager
def _understood() -> Iterator[None]:
    try:
        yield
    except ValueError as exc:
        raise Invalid("body", "The body is no multipart/form-data, or ends too early.") from exc
    except RequestEntityTooLarge as exc:
        detail = (
            f"A body may have {MOST_FILES} parts at most, each with few headers, and nothing around them."
        )
        raise Refusal("body_too_large", detail) from exc
