"""What a setting is, and what its text may say. `config` and its parts are made of these."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import field
from typing import Any

import limits

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def setting(default: str, cast: Callable[[str], Any], meaning: str) -> Any:
    return field(metadata={"default": default, "cast": cast, "meaning": meaning})


def seconds(raw: str) -> float:
    value = float(raw)
    if not 0 < value < 1e9:
        raise ValueError("must be a number of seconds above 0")
    return value


def count(raw: str) -> int:
    value = int(raw)
    if not 0 < value < 1e9:
        raise ValueError("must be a whole number above 0")
    return value


def amount(raw: str) -> int:
    value = int(raw)
    if not 0 <= value < 1e9:
        raise ValueError("must be a whole number, 0 or more")
    return value


def byte_count(raw: str) -> int:
    match = re.fullmatch(r"(\d+)([kmg]?)b?", raw.strip().lower())
    if match is None or int(match[1]) == 0:
        raise ValueError("must be a size in bytes, or like 512m or 2g")
    return int(match[1]) * _UNITS[match[2]]


def factor(raw: str) -> float:
    value = float(raw)
    if not 0.1 <= value <= 1000:
        raise ValueError("must be a number from 0.1 to 1000")
    return value


def rate(raw: str) -> str:
    try:
        limits.parse(raw)
    except ValueError as exc:
        raise ValueError("must be a number for a time, such as 60/minute") from exc
    return raw


def or_none(cast: Callable[[str], Any]) -> Callable[[str], Any]:
    """The same, or `none`: then nothing is limited."""

    def cast_or_none(raw: str) -> Any:
        return None if raw.strip().lower() == "none" else cast(raw)

    return cast_or_none
