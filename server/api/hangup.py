"""Noticing that a caller has gone while nothing is being sent to it."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import gevent
from gevent.socket import wait_read
from greenlet import greenlet


class ClientGone(ConnectionResetError):
    """Raised in the midst of what is being done for a caller who has hung up. gunicorn takes it quietly."""

    def __init__(self) -> None:
        super().__init__(errno.ECONNRESET, "the caller has gone")


@contextmanager
def noticed(peer: socket.socket | None) -> Iterator[None]:
    """In the block, ClientGone comes when the peer closes its end. Without a socket nothing is noticed."""
    if peer is None:
        yield
        return
    watcher = gevent.spawn(_watch, peer, gevent.getcurrent())
    try:
        yield
    finally:
        watcher.kill(block=False)


def _watch(peer: socket.socket, busy: greenlet) -> None:
    try:
        wait_read(peer.fileno())
        if peer.recv(1, socket.MSG_PEEK):
            return  # it has more to say: a kept connection's next request, which has to wait
    except OSError:
        pass
    gevent.kill(busy, ClientGone)
