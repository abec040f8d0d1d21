"""Structured logs: one line a record, JSON or for a console. Control bytes are always escaped.

A command's text is never logged above debug, a secret never at all.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone

from server.config import Config

_QUIET = ("apscheduler", "urllib3", "websockets")


def configure_logging(config: Config) -> None:
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(_Json() if config.log_format == "json" else _Console())
    root = logging.getLogger()
    root.handlers[:] = [stream]
    root.setLevel(config.log_level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel("WARNING")
    # Where a line was written from is not told, so it need not be found out: a third of a line's cost.
    logging._srcfile = None  # as the documentation of logging suggests
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """What a line says beyond its message: `extra={"fields": {...}}`."""
    fields: dict[str, object] = getattr(record, "fields", {})
    return fields


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, tz=timezone.utc).isoformat(timespec="milliseconds")


class _Json(logging.Formatter):
    def __init__(self) -> None:
        super().__init__()
        self._encode = json.JSONEncoder(default=str).encode

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return self._encode(line)


class _Console(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname:<7} {record.name}: {record.getMessage()} {fields}".rstrip()
        trace = self.formatException(record.exc_info).split("\n") if record.exc_info else []
        return "\n".join(_escaped(part) for part in [line, *trace])


def _escaped(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
