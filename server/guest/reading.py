"""What a path names, and what is in a file: stat and read."""

from __future__ import annotations

import os

from . import entries
from .files import Files, named
from .paths import opened, reopened
from .protocol import PIECE, Head
from .refused import Refused, refusal_of
from .transfers import Line


def told_of(files: Files, head: Head) -> Head:
    with files.touched(), opened(files.roots, named(head), head["follow"] is True) as place:
        return {"ok": True, "entry": entries.of_place(place)}


def read(files: Files, head: Head, line: Line) -> None:
    """The peer is told what is there, says which bytes of it it wants, and gets them."""
    with files.touched(), opened(files.roots, named(head)) as place:
        entries.must_be_file(os.fstat(place.fd))
        file = reopened(place, os.O_RDONLY)
        path = place.path
    try:
        line.begin({"entry": entries.facts(path, os.fstat(file))})
        wanted = line.ask()
        _send(line, file, int(wanted["begin"]), int(wanted["end"]))
    finally:
        os.close(file)
    line.end()


def _send(line: Line, file: int, begin: int, end: int) -> None:
    """As many bytes as were promised. One that has become shorter meanwhile cannot keep that."""
    buffer = memoryview(bytearray(min(PIECE, max(0, end - begin))))
    while begin < end:
        try:
            size = os.preadv(file, [buffer[: end - begin]], begin)
        except OSError as exc:
            raise refusal_of(exc) from exc
        if not size:
            raise Refused("file_changed")
        line.give(buffer[:size])
        begin += size
