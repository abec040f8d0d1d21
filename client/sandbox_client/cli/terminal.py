"""A connection to a session's terminal. The only module that knows WebSockets."""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import websocket
from requests.utils import DEFAULT_CA_BUNDLE_PATH

from ..credentials import Credentials
from ..errors import SandboxError, UnexpectedAnswer
from ..http import checked, problem
from ..version import __version__
from ..wire import Answer, lost, unreachable, untrusted

TIMEOUT = 10.0  # for one step of the connection: the server takes and gives at once
SILENCE = 60.0  # the server sends a ping every 25 seconds


@dataclass(frozen=True)
class Place:
    """Which terminal of which session."""

    credentials: Credentials
    session_id: str
    name: str


@dataclass(frozen=True)
class Output:
    """Bytes that the terminal shows, and the position behind them in the log of this shell."""

    data: bytes
    seq: int
    execution_id: str


@dataclass(frozen=True)
class Over:
    """The end: the shell's exit code, or None when only the connection was closed, for `reason`."""

    exit_code: int | None
    reason: str = ""


class Terminal:
    """One connection. A broken one raises ConnectionLost; open another `after` the last output to go on."""

    def __init__(self, place: Place, size: tuple[int, int], after: Output | None) -> None:
        self._url = place.credentials.url
        query: dict[str, Any] = {"name": place.name, "cols": size[0], "rows": size[1]}
        if after is not None:
            query.update(after=after.seq, execution_id=after.execution_id)
        path = f"/v1/sessions/{place.session_id}/terminal?{urlencode(query)}"
        self._socket = _dial(place.credentials, path)
        self._heard = time.monotonic()
        self._seq = 0
        self._execution_id = ""

    def fileno(self) -> int:
        return int(self._socket.fileno())  # type: ignore[no-untyped-call]  # theirs has no types

    def receive(self) -> Iterator[Output | Over]:
        """What has come, at least one frame of it. To be called when the socket can be read."""
        while True:
            yield from self._frame()
            pending = getattr(self._socket.sock, "pending", None)  # TLS may hold what select does not see
            if pending is None or not pending():
                return

    def check(self) -> None:
        """Raise if the server has been silent for too long."""
        if time.monotonic() - self._heard > SILENCE:
            raise lost(self._url, "silence")

    def type(self, keys: bytes) -> None:
        self._send(keys, websocket.ABNF.OPCODE_BINARY)

    def resize(self, size: tuple[int, int]) -> None:
        frame = json.dumps({"type": "resize", "cols": size[0], "rows": size[1]})
        self._send(frame.encode(), websocket.ABNF.OPCODE_TEXT)

    def close(self) -> None:
        self._socket.shutdown()  # type: ignore[no-untyped-call]  # theirs has no types

    def _send(self, data: bytes, opcode: int) -> None:
        try:
            self._socket.send(data, opcode)
        except (OSError, websocket.WebSocketException) as exc:
            raise lost(self._url, exc) from exc

    def _frame(self) -> Iterator[Output | Over]:
        try:
            opcode, frame = self._socket.recv_data_frame(control_frame=True)
        except (OSError, websocket.WebSocketException) as exc:
            raise lost(self._url, exc) from exc
        self._heard = time.monotonic()
        if opcode == websocket.ABNF.OPCODE_BINARY:
            self._seq += len(frame.data)
            yield Output(frame.data, self._seq, self._execution_id)
        elif opcode == websocket.ABNF.OPCODE_TEXT:
            yield from self._message(json.loads(frame.data))
        elif opcode == websocket.ABNF.OPCODE_CLOSE:
            yield self._goodbye(frame.data)

    def _message(self, message: dict[str, Any]) -> Iterator[Output | Over]:
        kind = message.get("type")
        if kind == "ready":
            self._seq, self._execution_id = int(message["seq"]), str(message["execution_id"])
            yield Output(b"", self._seq, self._execution_id)
        elif kind == "gap":  # this line was too slow: these bytes are no longer kept
            self._seq = int(message["to"])
            yield Output(b"", self._seq, self._execution_id)
        elif kind == "exit":
            yield Over(int(message["exit_code"]))
        elif kind == "problem":
            body = message.get("problem") or {}
            if body.get("code") != "stdin_full":  # then the program reads nothing: keys are dropped
                raise problem(body, body.get("status"), {})

    def _goodbye(self, data: bytes) -> Over:
        code, reason = int.from_bytes(data[:2], "big"), data[2:].decode(errors="replace")
        if code == 1000 and reason:
            return Over(None, reason)
        raise lost(self._url, f"closed with {code} {reason}".strip())


def _dial(credentials: Credentials, path: str) -> websocket.WebSocket:
    url = credentials.url
    header = {"Authorization": f"Bearer {credentials.api_key}", "User-Agent": f"sandbox-client/{__version__}"}
    options: dict[str, Any] = {"header": header, "suppress_origin": True, "redirect_limit": 0}
    try:
        return websocket.create_connection(
            "ws" + url[len("http") :] + path, timeout=TIMEOUT, sslopt={"ca_certs": _certificates()}, **options
        )
    except websocket.WebSocketBadStatusException as exc:
        raise _refused(url + path.partition("?")[0], exc) from exc
    except ssl.SSLCertVerificationError as exc:
        raise untrusted(url, exc) from exc
    except (ConnectionRefusedError, websocket.WebSocketAddressException) as exc:
        raise unreachable(url, exc) from exc
    except (OSError, websocket.WebSocketException) as exc:
        raise lost(url, exc) from exc


def _certificates() -> str:
    """Those that every other request trusts."""
    named = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    return named or str(DEFAULT_CA_BUNDLE_PATH)


def _refused(url: str, exc: websocket.WebSocketBadStatusException) -> SandboxError:
    headers = {name.title(): value for name, value in (exc.resp_headers or {}).items()}
    answer = Answer(url, exc.status_code, exc.status_message or "", headers, exc.resp_body or b"")
    try:
        checked(answer)
    except SandboxError as error:
        return error
    return UnexpectedAnswer(
        f"{url} does not open a terminal. Is the server new enough?", status=answer.status
    )
