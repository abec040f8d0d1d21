"""The verbs for files by name: those that answer at once, and those that take a connection for themselves."""

from __future__ import annotations

from typing import Callable

from . import directories, listing, moving, reading, tools, watching, writing
from .files import Files
from .protocol import Head
from .transfers import Line

VERBS: dict[str, Callable[[Files, Head], Head]] = {
    "file_stat": reading.told_of,
    "file_list": listing.listed,
    "file_mkdir": directories.make,
    "file_move": moving.move,
    "file_copy": moving.copy,
    "file_delete": moving.delete,
    "file_edit": writing.edit,
}
TRANSFERS: dict[str, Callable[[Files, Head, Line], None]] = {
    "file_read": reading.read,
    "file_write": writing.write,
    "file_search": tools.search,
    "file_watch": watching.watch,
    "archive_pack": tools.pack,
    "archive_unpack": tools.unpack,
}
