"""What a driver must do: the few things that touch the network or the clock.

There are two, `wire_requests` and `wire_httpx`. All else is written once, above them. A driver translates its
library's errors into ConnectionFailed (nothing was sent), ConnectionLost (something may have been),
AnswerTimeout and ConfigurationError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from .errors import AnswerTimeout, ConfigurationError, ConnectionFailed, ConnectionLost
from .outgoing import Outgoing
from .version import __version__

POOL_SIZE = 64  # connections kept: as many threads or tasks as may share a client without reconnecting
HEADERS: Mapping[str, str] = {"User-Agent": f"sandbox-client/{__version__}", "Accept": "application/json"}

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What is sent; `path` has its query. `timeout` is for each wait on the server's next bytes.

    `piece` is how much of the answer to read at once. Without it bytes are given as they come.
    """

    method: str
    path: str
    timeout: float
    body: bytes | Outgoing | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    piece: int | None = None


@dataclass(frozen=True)
class Answer:
    """What came back. The names in `headers` may be asked for in any case."""

    url: str
    status: int
    reason: str
    headers: Mapping[str, str]
    content: bytes


class Incoming(Protocol):
    """An answer that is still coming."""

    status: int

    @property
    def headers(self) -> Mapping[str, str]:
        """The names may be asked for in any case."""

    async def read(self) -> bytes:
        """The next bytes, as they arrive; none at the end."""

    async def whole(self) -> Answer:
        """The answer with all the rest of it."""

    async def close(self) -> None:
        """Hang up. May be called at any time."""


class Wire(Protocol):
    """One server, one key."""

    url: str

    async def send(self, request: Request) -> Answer:
        """Send, and read the whole answer."""

    async def open(self, request: Request) -> Incoming:
        """Send, and read the head of the answer."""

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""

    async def apart(self, work: Callable[[], T]) -> T:
        """Do work on this machine's own files where it holds nobody up."""

    def lock(self) -> AbstractAsyncContextManager[object]:
        """A new lock, for those who share a client."""

    async def hang_up(self) -> None:
        """Close the kept connections."""


def untrusted(url: str, cause: object) -> ConnectionFailed:
    return ConnectionFailed(f"The certificate of {url} is not trusted ({cause}).")


def unreachable(url: str, cause: object) -> ConnectionFailed:
    return ConnectionFailed(
        f"No connection to {url} ({cause}). Is the server running (./quickstart.sh status), and is url right?"
    )


def late(url: str) -> AnswerTimeout:
    return AnswerTimeout(f"{url} did not answer in time. The command may have run, or be running.")


def lost(url: str, cause: object) -> ConnectionLost:
    return ConnectionLost(f"The connection to {url} broke before the answer was whole ({cause}).")


def unsendable(url: str, cause: BaseException) -> ConfigurationError:
    return ConfigurationError(f"The request cannot be sent to {url} ({cause.__class__.__name__}).")
