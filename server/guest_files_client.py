"""Asking a guest about its user's files. Like `guest_client`, it takes every word it hears for untrusted.

Paths are bytes; on the wire they are text with a character for each byte.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from server import file_errors
from server.errors import GuestUnavailable, SandboxError
from server.file_answers import Edited, Entry, Page, edited_of, entry_of, page_of
from server.guest import protocol
from server.guest_client import GuestClient, GuestSilent, Sandbox

_SECONDS = 40.0
_STALLED = "The sandbox took or sent nothing for too long."
_TREE_SECONDS = 300.0  # beyond the time that the guest gives cp and rm

Told = TypeVar("Told")


@dataclass(frozen=True)
class Listing:
    """Which part of a directory: how deep, which names, from where on, how many."""

    path: bytes
    depth: int
    glob: str
    at: bytes
    limit: int


@dataclass(frozen=True)
class Upload:
    """Where bytes shall go, on which conditions, and how many there may be."""

    path: bytes
    mode: int | None
    parents: bool
    create_only: bool
    match: list[str] | None
    limit: int


@dataclass(frozen=True)
class UnreadPage:
    """What a guest says is in a directory. Reading it takes a while if it is much."""

    told: protocol.Head

    @property
    def size(self) -> int:
        entries = self.told.get("entries")
        return len(entries) if isinstance(entries, str) else 0

    def read(self) -> Page:
        return page_of(self.told)


class GuestFiles:
    def __init__(self, guests: GuestClient) -> None:
        self._guests = guests

    def stat(self, sandbox: Sandbox, path: bytes, follow: bool) -> Entry:
        head: protocol.Head = {"verb": "file_stat", "path": wired(path), "follow": follow}
        return self._ask(sandbox, head, path, entry_of)

    def list(self, sandbox: Sandbox, wanted: Listing) -> UnreadPage:
        head: protocol.Head = {"verb": "file_list", "path": wired(wanted.path), "at": wired(wanted.at)}
        head |= {"depth": wanted.depth, "glob": wanted.glob, "limit": wanted.limit}
        return self._ask(sandbox, head, wanted.path, UnreadPage)

    def make_directory(
        self, sandbox: Sandbox, path: bytes, parents: bool, mode: int | None
    ) -> tuple[Entry, bool]:
        """The directory, and whether it is new."""
        head: protocol.Head = {"verb": "file_mkdir", "path": wired(path), "parents": parents, "mode": mode}
        return self._ask(sandbox, head, path, lambda told: (entry_of(told), told.get("new") is True))

    def move(self, sandbox: Sandbox, source: bytes, destination: bytes, overwrite: bool) -> Entry:
        head: protocol.Head = {
            "verb": "file_move",
            "source": wired(source),
            "destination": wired(destination),
        }
        return self._ask(sandbox, {**head, "overwrite": overwrite}, source, entry_of, _TREE_SECONDS)

    def copy(
        self, sandbox: Sandbox, source: bytes, destination: bytes, overwrite: bool, recursive: bool
    ) -> Entry:
        head: protocol.Head = {
            "verb": "file_copy",
            "source": wired(source),
            "destination": wired(destination),
        }
        head |= {"overwrite": overwrite, "recursive": recursive}
        return self._ask(sandbox, head, source, entry_of, _TREE_SECONDS)

    def delete(self, sandbox: Sandbox, path: bytes, recursive: bool) -> None:
        head: protocol.Head = {"verb": "file_delete", "path": wired(path), "recursive": recursive}
        self._ask(sandbox, head, path, lambda told: None, _TREE_SECONDS)

    def edit(self, sandbox: Sandbox, path: bytes, old: str, new: str, every: bool) -> Edited:
        head: protocol.Head = {
            "verb": "file_edit",
            "path": wired(path),
            "old": old,
            "new": new,
            "all": every,
        }
        return self._ask(sandbox, head, path, edited_of)

    def read(self, sandbox: Sandbox, path: bytes) -> Reading:
        transfer, told = begin(self._guests, sandbox, {"verb": "file_read", "path": wired(path)}, path)
        return Reading(transfer, entry_of(told))

    def write(self, sandbox: Sandbox, wanted: Upload) -> Writing:
        head: protocol.Head = {"verb": "file_write", "path": wired(wanted.path), "mode": wanted.mode}
        head |= {"parents": wanted.parents, "create": wanted.create_only}
        head |= {"match": wanted.match, "limit": wanted.limit}
        return Writing(begin(self._guests, sandbox, head, wanted.path)[0])

    def _ask(
        self,
        sandbox: Sandbox,
        head: protocol.Head,
        path: bytes,
        read: Callable[[protocol.Head], Told],
        seconds: float = _SECONDS,
    ) -> Told:
        deadline = time.monotonic() + seconds
        connection, answer, _ = self._guests.take(sandbox, head, b"", deadline)
        self._guests.keep(sandbox, connection)
        if answer.get("ok") is not True:
            if answer.get("destination") is True and "destination" in head:
                path = head["destination"].encode("latin-1")
            raise _refusal(answer, path)
        return read(answer)


class Transfer:
    """A connection for itself. Whoever leaves it before its end has broken the transfer off."""

    def __init__(self, guests: GuestClient, sandbox: Sandbox, connection: socket.socket, path: bytes) -> None:
        self._guests = guests
        self._sandbox = sandbox
        self._connection: socket.socket | None = connection
        self._path = path
        self._buffer = bytearray()
        connection.settimeout(protocol.STALLED)

    def ask(self, head: protocol.Head) -> None:
        with self._while_it_lasts():
            protocol.send(self._open(), head)

    def give(self, data: bytes | memoryview) -> None:
        """If the guest takes no more, the reason it gives is raised."""
        view = memoryview(data)
        while view:
            try:
                protocol.send_piece(self._open(), view[: protocol.PIECE])
            except TimeoutError as exc:
                self.close()
                raise GuestUnavailable(_STALLED) from exc
            except OSError:
                self.finish()
                raise GuestSilent from None
            view = view[protocol.PIECE :]

    def take(self) -> bytes | None:
        """The next piece; None when that was all."""
        got = self.next()
        return got if isinstance(got, bytes) else None

    def next(self) -> bytes | protocol.Head:
        """The next piece, or what the guest says when that was all."""
        self._buffer = self._buffer or bytearray(protocol.PIECE)
        with self._while_it_lasts():
            got = protocol.receive_piece(self._open(), self._buffer)
        if isinstance(got, int):
            return bytes(memoryview(self._buffer)[:got])
        self._end(got)
        return got

    def finish(self, seconds: float = protocol.STALLED) -> protocol.Head:
        """What the guest says at the end of a transfer to it."""
        self._buffer = self._buffer or bytearray(protocol.PIECE)
        with self._while_it_lasts():
            self._open().settimeout(seconds)
            got = protocol.receive_piece(self._open(), self._buffer)
        if isinstance(got, int):
            raise GuestSilent
        self._end(got)
        return got

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _while_it_lasts(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as exc:
            self.close()
            raise GuestUnavailable(_STALLED) from exc
        except (OSError, EOFError, protocol.FrameError) as exc:
            self.close()
            raise GuestSilent from exc

    def _open(self) -> socket.socket:
        if self._connection is None:
            raise GuestSilent
        return self._connection

    def _end(self, told: protocol.Head) -> None:
        if told.get("ok") is not True:
            self.close()
            raise _refusal(told, self._path)
        connection, self._connection = self._open(), None
        self._guests.keep(self._sandbox, connection)


class Reading:
    """A file that is being read: what it is, and then any bytes of it, once."""

    def __init__(self, transfer: Transfer, entry: Entry) -> None:
        self._transfer = transfer
        self.entry = entry

    def pieces(self, begin: int, end: int) -> Iterator[bytes]:
        self._transfer.ask({"begin": begin, "end": end})
        left = end - begin
        while (piece := self._transfer.take()) is not None:
            left -= len(piece)
            if left < 0:
                raise GuestSilent  # more than was asked for
            yield piece
        if left:
            raise GuestSilent

    def close(self) -> None:
        self._transfer.close()


class Writing:
    """A file in the making. It is there when `finish` returns, and not at all if that is never called."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def give(self, data: bytes) -> None:
        self._transfer.give(data)

    def finish(self) -> tuple[Entry, bool]:
        """The file, and whether it is new."""
        self._transfer.ask({"ok": True})
        told = self._transfer.finish()
        return entry_of(told), told.get("new") is True

    def close(self) -> None:
        self._transfer.close()


def begin(
    guests: GuestClient, sandbox: Sandbox, head: protocol.Head, path: bytes, seconds: float = _SECONDS
) -> tuple[Transfer, protocol.Head]:
    """A transfer that the guest has agreed to, and what it said."""
    connection, answer, _ = guests.take(sandbox, head, b"", time.monotonic() + seconds)
    if answer.get("ok") is not True:
        guests.keep(sandbox, connection)
        raise _refusal(answer, path)
    return Transfer(guests, sandbox, connection, path), answer


def shown(path: bytes) -> str:
    """As text for people; what is no UTF-8 cannot be shown as it is."""
    return path.decode("utf-8", "replace")


def wired(path: bytes) -> str:
    return path.decode("latin-1")


def _refusal(told: protocol.Head, path: bytes) -> SandboxError:
    return file_errors.error_of(str(told.get("code")), shown(path), told.get("count"))
