"""The calls of the server's client for archives, searches and watched directories, without the sandbox."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from guest_process import GuestProcess

from server.bulk_answers import Found, Unpacked
from server.guest_bulk_client import GuestBulk, Packing, Sought, Unpacking, Watching

LIMIT = 1 << 30
KEEPALIVE = 0.3


class Bulk:
    def __init__(self, guest: GuestProcess) -> None:
        self.guest = guest
        self.home = guest.home
        self.client = GuestBulk(guest.client)

    def pack(self, path: str = ".", format: str = "tar", limit: int = LIMIT) -> Packing:
        return self.client.pack(self.guest.sandbox, path.encode(), format, limit)

    def begin(self, path: str = ".", format: str = "tar", limit: int = LIMIT) -> Unpacking:
        return self.client.unpack(self.guest.sandbox, path.encode(), format, limit)

    def unpack(self, archive: bytes, **wish: str) -> Unpacked:
        unpacking = self.begin(**wish)  # type: ignore[arg-type]
        for at in range(0, len(archive), 100_000):
            unpacking.give(archive[at : at + 100_000])
        return unpacking.finish()

    def search(self, pattern: str, **wish: object) -> Found:
        defaults = {"regex": False, "ignore_case": False, "glob": None, "context": 0, "limit": 200}
        sought = Sought(b".", pattern, **{**defaults, **wish})  # type: ignore[arg-type]
        return self.client.search(self.guest.sandbox, sought).read()

    def watch(self, path: str = ".", recursive: bool = False) -> Watching:
        return self.client.watch(self.guest.sandbox, path.encode(), recursive, KEEPALIVE)

    @contextmanager
    def watched(self, path: str = ".", recursive: bool = False) -> Iterator[Callable[[], list[str]]]:
        """Gives what happened since the last call, once it is quiet."""
        watching = self.watch(path, recursive)
        batches = watching.batches()

        def told() -> list[str]:
            found: list[str] = []
            while (batch := next(batches, None)) is not None:
                if not (changes := batch.read()) and found:
                    break
                for change in changes:
                    old = f"{self._short(change.old)} -> " if change.old else ""
                    found.append(f"{change.kind} {old}{self._short(change.path)}{'/' * change.directory}")
            return found

        yield told
        watching.close()

    def _short(self, path: bytes) -> str:
        return os.fsdecode(path.removeprefix(os.fsencode(self.home))).lstrip("/")
