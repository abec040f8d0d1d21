"""The blocking driver, on requests. Its coroutines do all on the spot and never wait: see `twofold`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.cookiejar import DefaultCookiePolicy
from ssl import SSLCertVerificationError
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError, ReadTimeoutError

from .credentials import Credentials, is_loopback
from .errors import SandboxError
from .wire import HEADERS, POOL_SIZE, Answer, Request, late, lost, unreachable, unsendable, untrusted


class RequestsWire:
    """Sends requests to one server with one key. Threads may share it."""

    def __init__(self, credentials: Credentials, connect_timeout: float) -> None:
        self.url = credentials.url
        self._connect_timeout = connect_timeout
        self._session = _session(credentials)

    async def send(self, request: Request) -> Answer:
        return _answer(self._request(request, stream=False))

    async def open(self, request: Request) -> RequestsIncoming:
        return RequestsIncoming(self._request(request, stream=True), self.url)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def lock(self) -> _Lock:
        return _Lock()

    async def hang_up(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the kept connections."""
        self._session.close()

    def _request(self, request: Request, stream: bool) -> requests.Response:
        try:
            return self._session.request(
                request.method,
                self.url + request.path,
                data=request.body,
                headers=request.headers,
                timeout=(self._connect_timeout, request.timeout),
                allow_redirects=False,  # a redirect could carry the key to another host
                stream=stream,
            )
        except requests.RequestException as exc:
            raise _translated(exc, self.url) from exc


class RequestsIncoming:
    """An answer that is still coming, read as its chunks arrive."""

    def __init__(self, response: requests.Response, url: str) -> None:
        self.status = response.status_code
        self._url = url
        self._response = response
        # What is not sent in chunks can only be waited for byte by byte.
        self._chunks = response.iter_content(None if getattr(response.raw, "chunked", False) else 1)

    async def read(self) -> bytes:
        try:
            return next(self._chunks, b"")
        except requests.RequestException as exc:
            raise _translated(exc, self._url) from exc

    async def whole(self) -> Answer:
        try:
            return _answer(self._response)
        except requests.RequestException as exc:
            raise _translated(exc, self._url) from exc

    async def close(self) -> None:
        self._response.close()


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


def _translated(exc: requests.RequestException, url: str) -> SandboxError:
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
