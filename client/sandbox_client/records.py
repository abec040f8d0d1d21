"""Frozen values that can be read like mappings too, made from the server's JSON.

Fields that this version does not know are ignored, so that an older client works with a newer server.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any

from .errors import UnexpectedAnswer


class Record(Mapping[str, Any]):
    """A dataclass whose fields can also be read by name in brackets."""

    def __getitem__(self, name: str) -> Any:
        if name not in self._names():
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    @classmethod
    def _names(cls) -> tuple[str, ...]:
        return _field_names(cls)


@functools.cache
def _field_names(record: type[Record]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(record))  # type: ignore[arg-type]  # every subclass is a dataclass


def read_times(known: dict[str, Any], *names: str) -> None:
    for name in names:
        if name in known:
            known[name] = moment(known[name])


def known_fields(
    record: type[Record], answer: Mapping[str, Any], required: str | None = None
) -> dict[str, Any]:
    if required is not None and answer.get(required) is None:
        raise UnexpectedAnswer(f"The server's answer has no {required}. Is this url a sandbox server?")
    return {name: answer[name] for name in record._names() if answer.get(name) is not None}


def moment(text: str) -> datetime:
    # Before Python 3.11 fromisoformat knows neither "Z" nor fractions of other than 3 or 6 digits.
    plain = re.sub(r"\.(\d+)", lambda match: f".{match[1][:6]:0<6}", text.replace("Z", "+00:00"))
    try:
        return datetime.fromisoformat(plain)
    except ValueError as exc:
        raise UnexpectedAnswer(f"The server sent a time that cannot be read: {text!r}.") from exc
