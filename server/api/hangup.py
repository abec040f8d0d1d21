"""Noticing that a caller has gone while nothing is being sent to it, and that the server wants to stop."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import gevent
from gevent.monkey import get_original
from gevent.socket import wait_read
from greenlet import greenlet

from server.errors import SandboxError

_LOOK_SECONDS = 1.0
_kernels_poll = get_original("select", "poll")  # gevent's own knows nothing of hang-ups


class ClientGone(ConnectionResetError):
    """The caller has hung up while something was being done for it."""


class ServerStops(Exception):
    """Whoever follows something may come back to the next server; what is followed goes on."""


class Stop(BaseException):
    """Thrown into the midst of that, past everything that takes an exception for a failure of its own."""


class Cut(Stop):
    """The same, because it must not go on; `reason` is what its caller shall be told."""

    def __init__(self, reason: SandboxError) -> None:
        super().__init__(reason.code)
        self.reason = reason


class Shutdown(Stop):
    """The same, because the worker shall end."""


@contextmanager
def interruptible() -> Iterator[None]:
    """In the block, a worker that shall end throws Shutdown instead of waiting."""
    mine = gevent.getcurrent()
    setattr(mine, _INTERRUPTIBLE, True)
    try:
        yield
    finally:
        setattr(mine, _INTERRUPTIBLE, False)


def interrupt(busy: Iterable[gevent.Greenlet[..., Any]]) -> None:
    for one in busy:
        if getattr(one, _INTERRUPTIBLE, False):
            one.kill(Shutdown, block=False)


_INTERRUPTIBLE = "may_be_interrupted"


@contextmanager
def noticed(
    peer: socket.socket | None, after: float = 0.0, check: Callable[[], None] | None = None
) -> Iterator[None]:
    """In the block, ClientGone comes when the peer closes its end. Without a socket nothing is noticed.

    `after` so many seconds: what is over sooner is not worth a watcher. From then on `check` is asked every
    second, and what it raises is raised in the block, too.
    """
    if peer is None:
        yield
        return
    watch = _Watch(peer, gevent.getcurrent(), after, check)
    try:
        yield
    except Shutdown as exc:
        raise ServerStops from exc
    except Cut as exc:
        raise exc.reason from None
    except Stop as exc:
        raise ClientGone from exc
    finally:
        watch.end()


class _Watch:
    """Begins after a while, by a timer: most of what is watched is over by then, and this is cheap."""

    def __init__(
        self, peer: socket.socket, busy: greenlet, after: float, check: Callable[[], None] | None
    ) -> None:
        self._watchers: list[gevent.Greenlet[..., None]] = []
        self._timer = gevent.get_hub().loop.timer(after)
        self._timer.start(self._begin, peer, busy, check)

    def _begin(self, peer: socket.socket, busy: greenlet, check: Callable[[], None] | None) -> None:
        self._watchers.append(gevent.spawn(_watch, peer, busy))
        if check is not None:
            self._watchers.append(gevent.spawn(oversee, busy, check))

    def end(self) -> None:
        self._timer.stop()
        self._timer.close()
        for watcher in self._watchers:
            watcher.kill(block=False)


def oversee(busy: greenlet, check: Callable[[], None]) -> None:
    """Ends what is done once `check` raises, within a second or two, whatever that waits for."""
    while True:
        gevent.sleep(_LOOK_SECONDS)
        try:
            check()
        except SandboxError as exc:
            gevent.kill(busy, Cut(exc))
            return


def _watch(peer: socket.socket, busy: greenlet) -> None:
    try:
        wait_read(peer.fileno())
        while peer.recv(1, socket.MSG_PEEK) and not _has_closed(peer):
            gevent.sleep(_LOOK_SECONDS)  # it has more to say: its next request, which has to wait
    except OSError:
        pass
    gevent.kill(busy, Stop)


def _has_closed(peer: socket.socket) -> bool:
    """Whatever it has said before."""
    poll = _kernels_poll()
    poll.register(peer.fileno(), select.POLLRDHUP | select.POLLHUP)
    return bool(poll.poll(0))
