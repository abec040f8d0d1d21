"""Noticing that a caller has gone while nothing is being sent to it, and that the server wants to stop."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import gevent
from gevent.socket import wait_read
from greenlet import greenlet


class ClientGone(ConnectionResetError):
    """The caller has hung up while something was being done for it."""


class ServerStops(Exception):
    """Whoever follows something may come back to the next server; what is followed goes on."""


class Stop(BaseException):
    """Thrown into the midst of that, past everything that takes an exception for a failure of its own."""


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
def noticed(peer: socket.socket | None, after: float = 0.0) -> Iterator[None]:
    """In the block, ClientGone comes when the peer closes its end. Without a socket nothing is noticed.

    `after` so many seconds: what is over sooner is not worth a watcher.
    """
    if peer is None:
        yield
        return
    watch = _Watch(peer, gevent.getcurrent(), after)
    try:
        yield
    except Shutdown as exc:
        raise ServerStops from exc
    except Stop as exc:
        raise ClientGone from exc
    finally:
        watch.end()


class _Watch:
    """Begins after a while, by a timer: most of what is watched is over by then, and this is cheap."""

    def __init__(self, peer: socket.socket, busy: greenlet, after: float) -> None:
        self._watcher: gevent.Greenlet[..., None] | None = None
        self._timer = gevent.get_hub().loop.timer(after)
        self._timer.start(self._begin, peer, busy)

    def _begin(self, peer: socket.socket, busy: greenlet) -> None:
        self._watcher = gevent.spawn(_watch, peer, busy)

    def end(self) -> None:
        self._timer.stop()
        self._timer.close()
        if self._watcher is not None:
            self._watcher.kill(block=False)


def _watch(peer: socket.socket, busy: greenlet) -> None:
    try:
        wait_read(peer.fileno())
        if peer.recv(1, socket.MSG_PEEK):
            return  # it has more to say: a kept connection's next request, which has to wait
    except OSError:
        pass
    gevent.kill(busy, Stop)
