"""What every command of a session stands on."""

from __future__ import annotations

from dataclasses import dataclass

from .processes import Processes
from .streams import Drain


@dataclass(frozen=True)
class Ground:
    processes: Processes
    drain: Drain
    env: dict[str, str]
    home: str
