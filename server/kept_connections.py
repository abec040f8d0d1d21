"""Connections to guests that wait for their next use: a few of each sandbox, of so many sandboxes at most.

A sandbox may be closed through another worker, which tells nobody. So whenever one more sandbox is known,
some of the others are looked at, and those whose guest has hung up are let go.
"""

from __future__ import annotations

import socket
from collections import OrderedDict

_PER_SANDBOX = 8
_SANDBOXES = 512
_LOOKED_AT = 2  # more than one: those that are gone become fewer, however many there were


class KeptConnections:
    def __init__(self) -> None:
        self._kept: OrderedDict[str, list[socket.socket]] = OrderedDict()

    def take(self, sandbox: str) -> socket.socket | None:
        kept = self._kept.get(sandbox)
        return kept.pop() if kept else None

    def keep(self, sandbox: str, connection: socket.socket) -> None:
        """For the next who asks the same guest."""
        if sandbox not in self._kept:
            self._look_around()
        kept = self._kept.setdefault(sandbox, [])
        self._kept.move_to_end(sandbox)
        if len(kept) < _PER_SANDBOX:
            kept.append(connection)
        else:
            connection.close()
        if len(self._kept) > _SANDBOXES:
            self.forget(next(iter(self._kept)))

    def forget(self, sandbox: str) -> None:
        for connection in self._kept.pop(sandbox, []):
            connection.close()

    def _look_around(self) -> None:
        """Those that were looked at go to the end, so that every one has its turn."""
        for _ in range(min(_LOOKED_AT, len(self._kept))):
            sandbox = next(iter(self._kept))
            if all(has_hung_up(connection) for connection in self._kept[sandbox]):
                self.forget(sandbox)
            else:
                self._kept.move_to_end(sandbox)


def has_hung_up(connection: socket.socket) -> bool:
    """Who is at the other end says nothing unasked: whatever can be read is the end."""
    connection.settimeout(0)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
