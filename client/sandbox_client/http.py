"""The one place that speaks HTTP: a kept connection, timeouts, retries, and errors translated once.

A request is sent again only where nothing can run twice: when no connection was made, or when it carries an
Idempotency-Key or is a GET or DELETE and the server or the network says that another try may help. An answer
that did not come in time is not waited for again: the caller's time is over.
"""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.cookiejar import DefaultCookiePolicy
from ssl import SSLCertVerificationError
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError, ReadTimeoutError

from .credentials import Credentials, is_loopback
from .errors import (
    BY_CODE,
    BY_STATUS,
    AnswerTimeout,
    ConfigurationError,
    ConnectionFailed,
    ConnectionLost,
    SandboxError,
    UnexpectedAnswer,
)
from .version import __version__

POOL_SIZE = 64  # connections kept: as many threads as may share a client without reconnecting
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
PAUSES_TOTAL = 30.0  # a call never waits longer than this between its tries, all pauses together
MEMBERS_OF_PROBLEM = {"type", "title", "status", "detail", "code", "retryable", "request_id"}


@dataclass(frozen=True)
class Patience:
    """How long to wait, in seconds, and how often to try again."""

    connect_timeout: float
    read_timeout: float
    retries: int

    def __post_init__(self) -> None:
        if self.connect_timeout <= 0 or self.read_timeout <= 0 or self.retries < 0:
            raise ConfigurationError("connect_timeout and read_timeout must be above 0, retries 0 or more.")


class Transport:
    """Sends requests to one server with one key. Threads may share it."""

    def __init__(self, credentials: Credentials, patience: Patience) -> None:
        self.url = credentials.url
        self._patience = patience
        self._session = _session(credentials)

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        work_time: float = 0.0,
    ) -> dict[str, Any]:
        """The server's answer. `work_time` is how long it may work before the read timeout starts."""
        request = requests.Request(method, self.url + path, params=query, headers={})
        if body is not None:
            request.data = json.dumps(body, allow_nan=False).encode()
            request.headers["Content-Type"] = "application/json"
        if idempotency_key is not None:
            request.headers["Idempotency-Key"] = idempotency_key
        repeatable = idempotency_key is not None or method in {"GET", "DELETE"}
        return self._persist(request, repeatable, work_time + self._patience.read_timeout)

    def close(self) -> None:
        """Close the kept connections."""
        self._session.close()

    def _persist(self, request: requests.Request, repeatable: bool, read_timeout: float) -> dict[str, Any]:
        attempt, waited = 0, 0.0
        while True:
            try:
                return _answer(self._send(request, read_timeout))
            except SandboxError as error:
                pause = _pause(attempt, error.retry_after)
                out_of_patience = attempt >= self._patience.retries or waited + pause > PAUSES_TOTAL
                if out_of_patience or not _may_repeat(error, repeatable):
                    raise
            time.sleep(pause)
            attempt, waited = attempt + 1, waited + pause

    def _send(self, request: requests.Request, read_timeout: float) -> requests.Response:
        try:
            return self._session.request(
                request.method or "GET",
                request.url or self.url,
                params=request.params,
                data=request.data,
                headers=request.headers,
                timeout=(self._patience.connect_timeout, read_timeout),
                allow_redirects=False,  # a redirect could carry the key to another host
            )
        except requests.RequestException as exc:
            raise _translated(exc, self.url) from exc


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
    session.headers["User-Agent"] = f"sandbox-client/{__version__}"
    session.headers["Accept"] = "application/json"
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # threads share it: no state
    session.trust_env = not is_loopback(credentials.url)  # a proxy cannot reach our own loopback
    adapter = _KeptAlive(pool_maxsize=POOL_SIZE)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


def _pause(attempt: int, retry_after: float | None) -> float:
    backoff = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**attempt) * random.uniform(0.5, 1.0)
    return max(backoff, retry_after or 0.0)


def _may_repeat(error: SandboxError, repeatable: bool) -> bool:
    if isinstance(error, ConnectionFailed):
        return True
    if not repeatable or isinstance(error, AnswerTimeout):
        return False
    asked_to_wait = error.status == 429 and error.retry_after is not None
    return error.retryable or asked_to_wait or isinstance(error, ConnectionLost)


def _answer(response: requests.Response) -> dict[str, Any]:
    if 300 <= response.status_code < 400:
        target = response.headers.get("Location", "elsewhere")
        raise UnexpectedAnswer(
            f"{response.url} redirects to {target}. The key is not sent there: set url to the right address.",
            status=response.status_code,
        )
    content = _json_object(response)
    if response.status_code >= 400:
        raise _problem(response, content or {})
    if content is None and response.status_code != 204:
        raise UnexpectedAnswer(
            f"{response.url} did not answer with JSON. Is this url a sandbox server?",
            status=response.status_code,
        )
    return content or {}


def _json_object(response: requests.Response) -> dict[str, Any] | None:
    try:
        content = json.loads(response.content)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _problem(response: requests.Response, content: Mapping[str, Any]) -> SandboxError:
    code, status = content.get("code"), response.status_code
    if isinstance(code, str):
        kind = BY_CODE.get(code, SandboxError)
        message = str(content.get("detail") or content.get("title") or code)
        retryable = content.get("retryable") is True
    else:
        code, kind = None, BY_STATUS.get(status, UnexpectedAnswer)
        message = (
            f"{response.url} answered {status} {response.reason}, not as a sandbox server does. Check url."
        )
        retryable = status == 503
    return kind(
        message,
        code=code,
        status=status,
        retryable=retryable,
        retry_after=_retry_after(response.headers.get("Retry-After")),
        request_id=content.get("request_id") or response.headers.get("X-Request-Id"),
        extras={name: value for name, value in content.items() if name not in MEMBERS_OF_PROBLEM},
    )


def _retry_after(header: str | None) -> float | None:
    if header is None:
        return None
    if header.strip().isdecimal():
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (TypeError, ValueError):  # TypeError before Python 3.10
        return None


def _translated(exc: requests.RequestException, url: str) -> SandboxError:
    causes = tuple(_causes(exc))
    if any(isinstance(cause, SSLCertVerificationError) for cause in causes):
        return ConnectionFailed(f"The certificate of {url} is not trusted ({causes[-1]}).")
    if any(isinstance(cause, (NewConnectionError, ConnectTimeoutError)) for cause in causes):
        return ConnectionFailed(
            f"No connection to {url} ({causes[-1]}). Is the server running (./quickstart.sh status), "
            "and is url right?"
        )
    if any(isinstance(cause, (requests.ReadTimeout, ReadTimeoutError)) for cause in causes):
        return AnswerTimeout(f"{url} did not answer in time. The command may have run, or be running.")
    if isinstance(exc, ValueError):  # requests' kinds of malformed address, header or proxy
        return ConfigurationError(f"The request cannot be sent to {url} ({exc.__class__.__name__}).")
    return ConnectionLost(f"The connection to {url} broke before the answer was whole ({causes[-1]}).")


def _causes(exc: BaseException) -> Iterator[BaseException]:
    """The exception and those wrapped in it, outermost first."""
    yield exc
    for inner in (getattr(exc, "reason", None), *exc.args):
        if isinstance(inner, BaseException):
            yield from _causes(inner)
            return
