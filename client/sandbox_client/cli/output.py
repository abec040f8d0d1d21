"""What the program says to people: messages, tables and JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, TextIO

from ..records import Record

RED, BOLD = "31", "1"
GAP = "  "


def complain(message: object) -> None:
    """One line to stderr."""
    line = " ".join(str(message).split())
    print(f"{paint('sandbox:', RED, sys.stderr)} {line}", file=sys.stderr, flush=True)


def paint(text: str, colour: str, stream: TextIO) -> str:
    """The text in a colour where that is wanted: on a terminal, unless NO_COLOR is set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if plain else f"\033[{colour}m{text}\033[0m"


def print_json(records: Iterable[Record]) -> None:
    print(json.dumps([dict(record) for record in records], default=_plain, indent=2))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns as wide as they must be; on a terminal the last one ends where the line does."""
    cells = [tuple(headings), *(tuple(map(one_line, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells)]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for number, row in enumerate(cells):
        line = GAP.join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()[:room]
        print(paint(line, BOLD, sys.stdout) if number == 0 else line)


def size(count: float | None) -> str:
    """Bytes as people read them."""
    if count is None:
        return "-"
    for unit in ("B", "K", "M", "G"):
        if count < 1000:  # with three digits
            return f"{count:.3g}{unit}"
        count /= 1024
    return f"{count:.3g}T"


def span(start: datetime | None, end: datetime | None = None) -> str:
    """The time between two moments, or between one and now."""
    if start is None:
        return "-"
    seconds = abs(((end or datetime.now(timezone.utc)) - start).total_seconds())
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def one_line(text: str) -> str:
    """Text from a sandbox can hold anything: no control character reaches the terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return dict(value) if isinstance(value, Mapping) else str(value)
