"""The blocking driver, on requests. Its coroutines do all on the spot and never wait: see `twofold`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from http.cookiejar import DefaultCookiePolicy
from ssl import SSLCertVerificationError
from typing import Any, TypeVar

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError

from .credentials import Credentials, is_loopback
from .errors import ConfigurationError, SandboxError
from .outgoing import Outgoing
from .wire import HEADERS, POOL_SIZE, Answer, Request, late, lost, unreachable, unsendable, untrusted

T = TypeVar("T")


class RequestsWire:
    """Sends requests to one server with one key. Threads may share it."""

    def __init__(self, credentials: Credentials, connect_timeout: float) -> None:
        self.url = credentials.url
        self._connect_timeout = connect_timeout
        self._session = _session(credentials)

    async def send(self, request: Request) -> Answer:
        return _answer(self._request(request, stream=False))

    async def open(self, request: Request) -> RequestsIncoming:
        return RequestsIncoming(self._request(request, stream=True), self.url, request.piece)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def apart(self, work: Callable[[], T]) -> T:
        return work()

    def lock(self) -> _Lock:
        return _Lock()

    async def hang_up(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the kept connections."""
        self._session.close()

    def _request(self, request: Request, stream: bool) -> requests.Response:
        patience = self._connect_timeout
        body = _Body(request.body) if isinstance(request.body, Outgoing) else request.body
        if isinstance(body, _Body):  # urllib3 has this timeout for sending too, and much may be taken slowly
            patience = max(patience, request.timeout)
        try:
            return self._session.request(
                request.method,
                self.url + request.path,
                data=body,
                headers=request.headers,
                timeout=(patience, request.timeout),
                allow_redirects=False,  # a redirect could carry the key to another host
                stream=stream,
            )
        except _SourceFailed as exc:
            raise exc.error from None
        except requests.RequestException as exc:
            raise _translated(exc, self.url) from exc


class RequestsIncoming:
    """An answer that is still coming, read as its chunks arrive."""

    def __init__(self, response: requests.Response, url: str, piece: int | None = None) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self._url = url
        self._response = response
        self._piece = piece
        # What is not sent in chunks can only be waited for byte by byte.
        self._chunks = response.iter_content(None if getattr(response.raw, "chunked", False) else 1)

    async def read(self) -> bytes:
        try:
            return next(self._chunks, b"") if self._piece is None else self._some(self._piece)
        except (requests.RequestException, HTTPError) as exc:
            raise _translated(exc, self._url) from exc

    def _some(self, most: int) -> bytes:
        """What is there already: a connection that breaks then costs nothing that had come through."""
        raw = self._response.raw
        found: bytes = getattr(raw, "read1", raw.read)(most)  # urllib3 has it since 2.1
        return found

    async def whole(self) -> Answer:
        try:
            return _answer(self._response)
        except requests.RequestException as exc:
            raise _translated(exc, self._url) from exc

    async def close(self) -> None:
        self._response.close()


class _SourceFailed(Exception):
    """The source of a body failed, not the connection: no OSError, so that urllib3 lets it pass."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


class _Body:
    """A body in pieces, as requests takes it: with a `len` it has a Content-Length, else it is chunked."""

    def __init__(self, outgoing: Outgoing) -> None:
        self._outgoing = outgoing
        if outgoing.size is not None:
            self.len = outgoing.size

    def __iter__(self) -> Iterator[bytes]:
        pieces = self._outgoing.begin()
        if isinstance(pieces, AsyncIterator):
            raise ConfigurationError("Only AsyncSandboxClient can read an asynchronous source.")
        while True:
            try:
                piece = next(pieces, None)
            except OSError as error:
                raise _SourceFailed(error) from error
            if piece is None:
                return
            yield piece
            self._outgoing.sent(len(piece))


class _Lock:
    """A lock of threads that is taken with `async with`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *error: object) -> None:
        self._lock.release()


class _Bearer(AuthBase):
    """Sets the key as `auth` and not as a header, because a .netrc entry would replace the header."""

    def __init__(self, api_key: str) -> None:
        self._header = f"Bearer {api_key}"

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = self._header
        return request


class _KeptAlive(HTTPAdapter):
    """Probes idle connections, so that a peer that vanished during a long command is noticed."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        options = [*HTTPConnection.default_socket_options, (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
        for name, seconds in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):  # not on every platform
                options.append((socket.IPPROTO_TCP, getattr(socket, name), seconds))
        super().init_poolmanager(*args, socket_options=options, **kwargs)


def _session(credentials: Credentials) -> requests.Session:
    session = requests.Session()
    session.auth = _Bearer(credentials.api_key)
    session.headers.update(HEADERS)
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # threads share it: no state
    session.trust_env = not is_loopback(credentials.url)  # a proxy cannot reach our own loopback
    adapter = _KeptAlive(pool_maxsize=POOL_SIZE)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


def _answer(response: requests.Response) -> Answer:
    return Answer(
        response.url, response.status_code, response.reason or "", response.headers, response.content
    )


def _translated(exc: Exception, url: str) -> SandboxError:
    causes = tuple(_causes(exc))
    if any(isinstance(cause, SSLCertVerificationError) for cause in causes):
        return untrusted(url, causes[-1])
    if any(isinstance(cause, (NewConnectionError, ConnectTimeoutError)) for cause in causes):
        return unreachable(url, causes[-1])
    if any(isinstance(cause, (requests.ReadTimeout, ReadTimeoutError)) for cause in causes):
        return late(url)
    if isinstance(exc, ValueError):  # requests' kinds of malformed address, header or proxy
        return unsendable(url, exc)
    return lost(url, causes[-1])


def _causes(exc: BaseException) -> Iterator[BaseException]:
    """The exception and those wrapped in it, outermost first."""
    yield exc
    for inner in (getattr(exc, "reason", None), *exc.args):
        if isinstance(inner, BaseException):
            yield from _causes(inner)
            return
