"""What is kept of a command's output: the first and the last bytes, and the count of them all."""

from __future__ import annotations

from .log import Log


class Capture:
    """Bounded: whatever is added, at most about one and a half times `limit` is held."""

    def __init__(self, limit: int) -> None:
        self._head_size = limit - limit // 2
        self._tail_size = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self._head_size - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if not chunk:
            return
        self._tail += chunk[-self._tail_size :] if self._tail_size else b""
        if len(self._tail) > 2 * self._tail_size:
            del self._tail[: -self._tail_size]

    def parts(self) -> tuple[bytes, bytes]:
        """The head and the tail; together they are everything unless `truncated`."""
        kept = min(len(self._tail), self._tail_size)
        return bytes(self._head), bytes(self._tail[len(self._tail) - kept :])

    @property
    def truncated(self) -> bool:
        return self.total > self._head_size + self._tail_size


class Output:
    """stdout and stderr apart, and both together in the order in which they arrived.

    While only one of the two has spoken, the order is its own and nothing is stored twice. Every byte goes
    to the execution's log as well, which keeps more of them.
    """

    def __init__(self, limit: int, log: Log | None = None) -> None:
        self._limit = limit
        self._log = log
        self.streams = {"stdout": Capture(limit), "stderr": Capture(limit)}
        self._spoke = ""
        self._both: Capture | None = None

    def add(self, stream: str, chunk: bytes) -> None:
        if self._log is not None:
            self._log.add(stream, chunk)
        if self._both is None and self._spoke not in ("", stream):
            self._both = self._copy_of(self.streams[self._spoke])
        self._spoke = stream
        self.streams[stream].add(chunk)
        if self._both is not None:
            self._both.add(chunk)

    def _copy_of(self, first: Capture) -> Capture:
        copy = Capture(self._limit)
        head, tail = first.parts()
        copy.add(head)
        copy.add(tail)
        copy.total = first.total
        return copy

    @property
    def both(self) -> Capture | None:
        """None when it equals the one stream that has spoken."""
        return self._both
