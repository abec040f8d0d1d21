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
    watcher = gevent.spawn_later(after, _watch, peer, gevent.getcurrent())
    try:
        yield
    except Shutdown as exc:
        raise ServerStops from exc
    except Stop as exc:
        raise ClientGone from exc
    finally:
        watcher.kill(block=False)


def _watch(peer: socket.socket, busy: greenlet) -> None:
    try:
        wait_read(peer.fileno())
        if peer.recv(1, socket.MSG_PEEK):
            return  # it has more to say: a kept connection's next request, which has to wait
    except OSError:
        pass
    gevent.kill(busy, Stop)
