"""What every command of a session stands on."""

from __future__ import annotations

from typing import NamedTuple

from .processes import Processes
from .streams import Drain


class Ground(NamedTuple):
    processes: Processes
    drain: Drain
    env: dict[str, str]
    home: str
