"""What is to be opened for a session."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wanted:
    session: str
    image: str
    memory: int
    cpus: float
    disk: int
    env: dict[str, str]
