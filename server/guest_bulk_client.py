"""Asking a guest for what takes its connection for a while: archives, searches, watched directories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from server.bulk_answers import (
    Change,
    Found,
    Packed,
    Unpacked,
    changes_of,
    found_of,
    packed_of,
    place_of,
    unpacked_of,
)
from server.guest import protocol
from server.guest_client import GuestClient, GuestSilent, Sandbox
from server.guest_files_client import Transfer, begin, wired

_BEGINNING = 80.0  # a little more than the guest waits for its script to have looked at everything
_FINISHING = 320.0
_MOST_FOUND = 6 << 20
_MARGIN = 1 << 20
_GO_ON: protocol.Head = {"ok": True}


@dataclass(frozen=True)
class Sought:
    """What is searched for, where, and how much of it is wanted."""

    path: bytes
    pattern: str
    regex: bool
    ignore_case: bool
    glob: str | None
    context: int
    limit: int
    seconds: float = 10.0


class GuestBulk:
    def __init__(self, guests: GuestClient) -> None:
        self._guests = guests

    def pack(self, sandbox: Sandbox, path: bytes, format: str, limit: int) -> Packing:
        head = {"verb": "archive_pack", "format": format, "limit": limit}
        transfer, told = self._begin(sandbox, head, path)
        transfer.ask(_GO_ON)
        return Packing(transfer, packed_of(told), 3 * limit + _MARGIN)

    def unpack(self, sandbox: Sandbox, path: bytes, format: str, limit: int) -> Unpacking:
        head = {"verb": "archive_unpack", "format": format, "limit": limit}
        transfer, told = self._begin(sandbox, head, path)
        return Unpacking(transfer, place_of(told))

    def search(self, sandbox: Sandbox, sought: Sought) -> Rows:
        head = {"verb": "file_search", **vars(sought)}
        transfer, _ = self._begin(sandbox, head, sought.path)
        rows = bytearray()
        try:
            transfer.ask(_GO_ON)
            while isinstance(piece := transfer.next(), bytes):
                rows += piece
                if len(rows) > _MOST_FOUND:
                    raise GuestSilent
        finally:
            transfer.close()
        return Rows(bytes(rows), piece, sought.limit)

    def watch(self, sandbox: Sandbox, path: bytes, recursive: bool, keepalive: float) -> Watching:
        head = {"verb": "file_watch", "recursive": recursive, "keepalive": keepalive}
        transfer, told = self._begin(sandbox, head, path)
        transfer.ask(_GO_ON)
        return Watching(transfer, place_of(told))

    def _begin(self, sandbox: Sandbox, head: protocol.Head, path: bytes) -> tuple[Transfer, protocol.Head]:
        return begin(self._guests, sandbox, {**head, "path": wired(path)}, path, _BEGINNING)


@dataclass(frozen=True)
class Rows:
    """What a search found, not read yet: that takes a while if it is much."""

    raw: bytes
    told: protocol.Head
    most: int

    @property
    def size(self) -> int:
        return len(self.raw)

    def read(self) -> Found:
        return found_of(self.raw, self.told, self.most)


class Packing:
    """An archive that comes. What is left before its end was broken off.

    However small its files are, what is around them is at most twice the limit: more is not one of ours.
    """

    def __init__(self, transfer: Transfer, told: Packed, most: int) -> None:
        self._transfer = transfer
        self._most = most
        self.told = told

    def pieces(self) -> Iterator[bytes]:
        left = self._most
        while (piece := self._transfer.take()) is not None:
            left -= len(piece)
            if left < 0:
                raise GuestSilent
            yield piece

    def close(self) -> None:
        self._transfer.close()


class Unpacking:
    """An archive that is sent, and the directory below which it is unpacked."""

    def __init__(self, transfer: Transfer, path: bytes) -> None:
        self._transfer = transfer
        self._path = path

    def give(self, data: bytes) -> None:
        self._transfer.give(data)

    def finish(self) -> Unpacked:
        self._transfer.ask({"ok": True})
        return unpacked_of(self._path, self._transfer.finish(_FINISHING))

    def close(self) -> None:
        self._transfer.close()


@dataclass(frozen=True)
class Batch:
    """Some changes, not read yet."""

    raw: bytes

    @property
    def size(self) -> int:
        return len(self.raw)

    def read(self) -> list[Change]:
        """None at all: that all is well."""
        return changes_of(self.raw)


class Watching:
    """A directory that is watched, by its real path, until it goes or this is closed."""

    def __init__(self, transfer: Transfer, path: bytes) -> None:
        self._transfer = transfer
        self.path = path

    def batches(self) -> Iterator[Batch]:
        while (piece := self._transfer.take()) is not None:
            yield Batch(piece)

    def close(self) -> None:
        self._transfer.close()
