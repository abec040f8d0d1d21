"""What every verb for files stands on: whose files they are, and where they may be."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Iterator

from .as_user import as_user
from .ground import Ground
from .paths import Roots
from .protocol import Head
from .refused import refusal_of

MOST_TOOLS = 8
MOST_WATCHES = 8


class Files:
    def __init__(self, ground: Ground, roots: Roots) -> None:
        self.ground = ground
        self.roots = roots
        # Callers who replace or move things on a condition do so one after the other.
        self.replacing = threading.Lock()
        # Scripts that pack, unpack or search, and callers who watch: so many at once.
        self.tools = threading.BoundedSemaphore(MOST_TOOLS)
        self.watches = threading.BoundedSemaphore(MOST_WATCHES)

    @contextmanager
    def touched(self) -> Iterator[None]:
        """As the user, in this thread. What the operating system refuses is a refusal of ours."""
        identity = self.ground.processes.identity
        assert identity is not None, "bind comes first"
        try:
            with as_user(identity.uid, identity.gid):
                yield
        except OSError as exc:
            raise refusal_of(exc) from exc


def named(head: Head, name: str = "path") -> bytes:
    """A path travels as text with a character for each byte, whatever the bytes are."""
    return str(head[name]).encode("latin-1", "replace")


def told(path: bytes) -> str:
    """The inverse."""
    return path.decode("latin-1")
