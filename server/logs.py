"""Structured logs: one line a record, JSON or for a console. Control bytes are always escaped.

A command's text is never logged above debug, a secret never at all.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone

from server.config import Config

_PLAIN = set(vars(logging.makeLogRecord({}))) | {"message", "taskName"}


def configure_logging(config: Config) -> None:
    formatter = _Json() if config.log_format == "json" else _Console()
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [stream]
    root.setLevel(config.log_level.upper())
    logging.getLogger("apscheduler").setLevel("WARNING")
    logging.getLogger("urllib3").setLevel("WARNING")


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _PLAIN}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, tz=timezone.utc).isoformat(timespec="milliseconds")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Console(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        extras = " ".join(f"{name}={value}" for name, value in _extras(record).items())
        text = f"{_time(record)} {record.levelname:<7} {record.name}: {record.getMessage()} {extras}".rstrip()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return "\n".join(_escaped(line) for line in text.split("\n"))


def _escaped(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
