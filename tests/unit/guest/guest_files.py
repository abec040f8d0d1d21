"""The calls of the server's client for files, without the sandbox that is the same in all of them."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from guest_process import GuestProcess

from server.errors import SandboxError
from server.file_answers import Entry, Page
from server.guest_files_client import GuestFiles, Listing, Upload, Writing

LIMIT = 1 << 30


class Files:
    def __init__(self, guest: GuestProcess) -> None:
        self.guest = guest
        self.client = GuestFiles(guest.client)
        self.home = guest.home

    def write(self, path: str | bytes, data: bytes = b"", **wish: object) -> tuple[Entry, bool]:
        writing = self.begin(path, **wish)
        for at in range(0, len(data), 100_000):
            writing.give(data[at : at + 100_000])
        return writing.finish()

    def begin(self, path: str | bytes, **wish: object) -> Writing:
        defaults = {"mode": None, "parents": True, "create_only": False, "match": None, "limit": LIMIT}
        upload = Upload(os.fsencode(path), **{**defaults, **wish})  # type: ignore[arg-type]
        return self.client.write(self.guest.sandbox, upload)

    def read(self, path: str | bytes, begin: int = 0, end: int | None = None) -> bytes:
        reading = self.client.read(self.guest.sandbox, os.fsencode(path))
        return b"".join(reading.pieces(begin, reading.entry.size if end is None else end))

    def stat(self, path: str | bytes, follow: bool = False) -> Entry:
        return self.client.stat(self.guest.sandbox, os.fsencode(path), follow)

    def page(
        self, path: str = ".", depth: int = 1, glob: str = "", at: bytes = b"", limit: int = 1000
    ) -> Page:
        wanted = Listing(os.fsencode(path), depth, glob, at, limit)
        return self.client.list(self.guest.sandbox, wanted).read()

    def names(self, path: str = ".", limit: int = 1000, **wish: object) -> list[str]:
        """All pages, as paths below what is listed."""
        found, at = [], b""
        while True:
            page = self.page(path, at=at, limit=limit, **wish)  # type: ignore[arg-type]
            found += [os.fsdecode(entry.path.removeprefix(page.path + b"/")) for entry in page.entries]
            if page.following is None:
                return found
            at = page.following

    def mkdir(self, path: str, parents: bool = True, mode: int | None = None) -> tuple[Entry, bool]:
        return self.client.make_directory(self.guest.sandbox, os.fsencode(path), parents, mode)

    def move(self, source: str, destination: str, overwrite: bool = False) -> Entry:
        return self.client.move(self.guest.sandbox, os.fsencode(source), os.fsencode(destination), overwrite)

    def copy(self, source: str, destination: str, overwrite: bool = False, recursive: bool = True) -> Entry:
        sandbox = self.guest.sandbox
        return self.client.copy(sandbox, os.fsencode(source), os.fsencode(destination), overwrite, recursive)

    def delete(self, path: str | bytes, recursive: bool = False) -> None:
        self.client.delete(self.guest.sandbox, os.fsencode(path), recursive)

    def edit(self, path: str, old: str, new: str, every: bool = False) -> int:
        return self.client.edit(self.guest.sandbox, os.fsencode(path), old, new, every).replacements

    def tree(self) -> list[str]:
        return sorted(str(path.relative_to(self.home)) for path in self.home.rglob("*"))


def refused(kind: type[SandboxError], call: Callable[[], object]) -> SandboxError:
    with pytest.raises(kind) as caught:
        call()
    return caught.value
