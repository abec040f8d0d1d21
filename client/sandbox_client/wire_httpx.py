"""The awaiting driver, on httpx; anyio comes with it. Works on asyncio and trio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ssl import SSLCertVerificationError
from typing import TypeVar

import anyio
import anyio.to_thread
import httpx

from .credentials import Credentials, is_loopback
from .errors import SandboxError
from .outgoing import Outgoing
from .wire import HEADERS, POOL_SIZE, Answer, Request, late, lost, unreachable, unsendable, untrusted

T = TypeVar("T")


class HttpxWire:
    """Sends requests to one server with one key. Tasks of one event loop may share it."""

    def __init__(self, credentials: Credentials, connect_timeout: float) -> None:
        self.url = credentials.url
        self._credentials = credentials
        self._connect_timeout = connect_timeout
        self._client: httpx.AsyncClient | None = None

    async def send(self, request: Request) -> Answer:
        return await (await self.open(request)).whole()

    async def open(self, request: Request) -> HttpxIncoming:
        client = self._client = self._client or _client(self._credentials)
        timeout = httpx.Timeout(request.timeout, connect=self._connect_timeout)
        body, headers = request.body, dict(request.headers)
        if isinstance(body, Outgoing) and body.size is not None:
            headers["Content-Length"] = str(body.size)
        try:
            message = client.build_request(
                request.method,
                self.url + request.path,
                content=_sent(body) if isinstance(body, Outgoing) else body,
                headers=headers,
                timeout=timeout,
            )
            return HttpxIncoming(await client.send(message, stream=True), self.url)
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise _translated(exc, self.url) from exc

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def apart(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work)

    def lock(self) -> anyio.Lock:
        return anyio.Lock()

    async def hang_up(self) -> None:
        client, self._client = self._client, None  # a closed one is of no use if there is more to say
        if client is not None:
            await client.aclose()


class HttpxIncoming:
    """An answer that is still coming, read as its chunks arrive."""

    def __init__(self, response: httpx.Response, url: str) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self._url = url
        self._response = response
        self._chunks: AsyncIterator[bytes] = response.aiter_bytes()

    async def read(self) -> bytes:
        try:
            return await self._chunks.__anext__()
        except StopAsyncIteration:
            return b""
        except httpx.HTTPError as exc:
            raise _translated(exc, self._url) from exc

    async def whole(self) -> Answer:
        response = self._response
        try:
            content = await response.aread()
        except httpx.HTTPError as exc:
            raise _translated(exc, self._url) from exc
        finally:
            await self.close()
        return Answer(
            str(response.url), response.status_code, response.reason_phrase, response.headers, content
        )

    async def close(self) -> None:
        await self._response.aclose()


async def _sent(outgoing: Outgoing) -> AsyncIterator[bytes]:
    """The pieces of a body; those of files are read where they hold nobody up."""
    pieces = outgoing.begin()
    while True:
        if isinstance(pieces, AsyncIterator):
            piece = await _next(pieces)
        else:
            piece = await anyio.to_thread.run_sync(next, pieces, None)
        if piece is None:
            return
        yield piece
        outgoing.sent(len(piece))


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    try:
        return await pieces.__anext__()
    except StopAsyncIteration:
        return None


def _client(credentials: Credentials) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        headers={**HEADERS, "Authorization": f"Bearer {credentials.api_key}"},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # tasks share it: no state
        trust_env=not is_loopback(credentials.url),  # a proxy cannot reach our own loopback
        follow_redirects=False,  # a redirect could carry the key to another host
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=POOL_SIZE),
    )


def _translated(exc: Exception, url: str) -> SandboxError:
    if isinstance(exc, (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)):
        causes = tuple(_causes(exc))
        if any(isinstance(cause, SSLCertVerificationError) for cause in causes):
            return untrusted(url, causes[-1])
        return unreachable(url, str(exc) or exc.__class__.__name__)
    if isinstance(exc, httpx.ReadTimeout):
        return late(url)
    if isinstance(exc, (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError)):
        return unsendable(url, exc)
    return lost(url, str(exc) or exc.__class__.__name__)


def _causes(exc: BaseException | None) -> list[BaseException]:
    found = []
    while exc is not None:
        found.append(exc)
        exc = exc.__cause__ or exc.__context__
    return found
