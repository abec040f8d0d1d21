"""Noticing that a caller has gone while nothing is being sent to it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import gevent
from gevent.socket import wait_read
from greenlet import greenlet


class ClientGone(ConnectionResetError):
    """The caller has hung up while something was being done for it."""


class Stop(BaseException):
    """Thrown into the midst of that, past everything that takes an exception for a failure of its own."""


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
