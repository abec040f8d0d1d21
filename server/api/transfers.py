"""Bytes on their way through a worker: they hold up nobody, and stop when their key or session ends."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import gevent
from flask import g, request
from gunicorn.http.errors import ParseException

from server import errors
from server.api.hangup import Cut, oversee
from server.api.parse import SlowBody
from server.api.problems import Refusal
from server.api.wiring import key, parts, tenant
from server.file_errors import TooLarge

_SMALLEST, _LARGEST = 4 << 10, 128 << 10
_QUICK, _SLOW = 0.1, 2.0
_PACE_SECONDS = 60.0
_SLOWEST = 1024  # bytes a second
_TOO_SLOW = "The body came too slowly: less than 1 KiB a second for a minute."


def permission(session_id: str) -> Callable[[], None]:
    """Raises once the caller may no longer do what it is doing. Good beyond the request."""
    may = still_authorized()
    keep = partial(parts().files.keep, tenant(), session_id)

    def check() -> None:
        may()
        keep()

    return check


def still_authorized() -> Callable[[], None]:
    """Raises once the key is no longer good. Good beyond the request."""
    return partial(_may_go_on, parts().is_revoked, key().id)


def _may_go_on(is_revoked: Callable[[str], bool], key_id: str) -> None:
    if is_revoked(key_id):
        raise errors.Unauthorized


@contextmanager
def overseen(check: Callable[[], None]) -> Iterator[None]:
    """What `check` raises is raised in the block, within a second or two, whatever that waits for."""
    watcher = gevent.spawn(oversee, gevent.getcurrent(), check)
    try:
        yield
    except Cut as exc:
        raise exc.reason from None
    finally:
        watcher.kill(block=False)


def sent(
    pieces: Iterator[bytes], going_on: AbstractContextManager[None], check: Callable[[], None]
) -> Iterator[bytes]:
    """Pieces for a caller, as long as it may have them."""
    try:
        with going_on, overseen(check):
            for piece in pieces:
                yield piece
                gevent.sleep(0)  # a reader that takes at once would leave no other its turn
    except errors.SandboxError as exc:  # too late for a problem: what is cut off must not look whole
        raise ConnectionResetError(errno.ECONNRESET, exc.code) from exc


def body(limit: int) -> Iterator[bytes]:
    """The request's body in pieces, whole or not at all: at its end something is raised if it was cut off."""
    declared = request.content_length
    if declared is not None and declared > limit:
        raise TooLarge(limit=limit)
    if declared is None and "Transfer-Encoding" not in request.headers:
        return
    total, size, pace = 0, _SMALLEST, Pace()
    while declared is None or total < declared:
        began = time.monotonic()
        piece = _read(size if declared is None else min(size, declared - total))
        if not piece:
            break
        seconds = time.monotonic() - began
        size = _next_size(size, seconds)
        pace.note(len(piece), seconds)
        total += len(piece)
        g.log["received"] = total
        if total > limit:
            raise TooLarge(limit=limit)
        yield piece
        gevent.sleep(0)  # where bytes never stop coming nothing else would ever have its turn
    if declared is not None and total < declared:
        raise errors.Invalid("body", "The body is shorter than its Content-Length says.")


class Pace:
    """How fast a body comes. Only the time that was waited for it counts, not what is done with it."""

    def __init__(self) -> None:
        self._size, self._seconds = 0, 0.0

    def note(self, size: int, seconds: float) -> None:
        """So many bytes took so long. Raises what the sender is to be told if that goes on too slowly."""
        self._size += size
        self._seconds += seconds
        if self._seconds < _PACE_SECONDS:
            return
        if self._size < _SLOWEST * self._seconds:
            raise Refusal("malformed_http", _TOO_SLOW)
        self._size, self._seconds = 0, 0.0


def _read(size: int) -> bytes:
    """So many bytes, or what there is at the end. What came of them is not seen before, only the clock."""
    try:
        with gevent.Timeout(max(_PACE_SECONDS, size / _SLOWEST), SlowBody):
            piece: bytes = request.environ["wsgi.input"].read(size)
    except SlowBody as exc:
        raise Refusal("malformed_http", _TOO_SLOW) from exc
    except (OSError, ParseException) as exc:  # a peer that stopped sending, chunks that are none
        raise Refusal("malformed_http", "The body could not be read to its end.") from exc
    return piece


def _next_size(size: int, seconds: float) -> int:
    """A read ends when it is full: what comes slowly is passed on in small pieces, so that it does go on."""
    if seconds < _QUICK:
        return min(2 * size, _LARGEST)
    return max(size // 4, 1024) if seconds > _SLOW else size
