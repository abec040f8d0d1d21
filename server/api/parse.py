"""From bytes to a checked request. JSON that is legal but treacherous is refused: doubled keys, NaN, numbers
of a million digits, lone surrogates, bottomless nesting."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import gevent
from flask import g, request
from gunicorn.http.errors import ParseException
from pydantic import BaseModel, ValidationError
from werkzeug.exceptions import RequestEntityTooLarge

from server import errors
from server.api import acts
from server.api.problems import Refusal
from server.names import Idempotency

SMALL_BODY = 1 << 20  # what any route takes; more only where `LargeBodies` has given a place
_LARGE_AT_ONCE = 8
_LARGE_SECONDS = 30.0
_BODY_SECONDS = 60.0  # for all of it: each byte renews the time that a peer may be silent
_MOST_DIGITS = 30
# Parsing is not interrupted by other requests: what is not inside strings costs the most, and is bounded.
_MOST_STRUCTURE = 256 << 10

Model = TypeVar("Model", bound=BaseModel)


class SlowBody(Exception):
    """Thrown into the reading of a body. gunicorn then takes the connection for broken, and closes it."""


class LargeBodies:
    """A few large bodies are read and parsed at a time: their many copies are what fills the memory."""

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._places = threading.BoundedSemaphore(_LARGE_AT_ONCE)
        self._of_tenants: dict[str, threading.BoundedSemaphore] = {}

    @contextmanager
    def place(self) -> Iterator[None]:
        """In the block the request's body may be as large as the operator allows."""
        size = request.content_length
        if size is not None and size <= SMALL_BODY:
            yield
            return
        with self._taken(self._half(g.key.tenant)), self._taken(self._places):
            request.max_content_length = self._largest
            yield

    def _half(self, tenant: str) -> threading.BoundedSemaphore:
        """So many places at most are one tenant's, who may send very slowly."""
        return self._of_tenants.setdefault(tenant, threading.BoundedSemaphore(_LARGE_AT_ONCE // 2))

    @contextmanager
    def _taken(self, places: threading.BoundedSemaphore) -> Iterator[None]:
        if not places.acquire(timeout=_LARGE_SECONDS):
            raise errors.ServerBusy("Too many large requests at once. Try again shortly.")
        try:
            yield
        finally:
            places.release()


def body_of(model: type[Model]) -> Model:
    """The request's body as `model`. No body at all means no fields."""
    raw = _raw_body()
    fields = _fields(raw)
    if "Idempotency-Key" in request.headers or "execution_id" in fields:
        g.fingerprint = hashlib.sha256(request.path.encode() + b" " + raw).hexdigest()
    return _heard(_checked(model, fields))


def query_of(model: type[Model], fields: dict[str, str]) -> Model:
    return _heard(_checked(model, fields, strict=False))


def _heard(asked: Model) -> Model:
    acts.heard(asked)
    return asked


def text_of(model: type[Model], text: str) -> Model:
    """What came as a text of its own rather than as a body."""
    return _checked(model, _fields(text.encode()))


def idempotency() -> Idempotency | None:
    """The caller's key, and what makes a second request the same request: its path and its very bytes."""
    key = idempotency_key()
    return None if key is None else Idempotency(key, g.fingerprint)


def idempotency_key() -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is not None and not (
        1 <= len(key) <= 200 and key.isascii() and key.isprintable() and " " not in key
    ):
        raise errors.Invalid("Idempotency-Key", "Use 1 to 200 visible ASCII characters.")
    return key


def _raw_body() -> bytes:
    if request.content_length is None and "Transfer-Encoding" not in request.headers:
        return b""
    try:
        with gevent.Timeout(_BODY_SECONDS, SlowBody):
            raw = request.get_data(cache=False)
    except SlowBody as exc:
        detail = f"The body came too slowly: not within {_BODY_SECONDS:.0f} seconds."
        raise Refusal("malformed_http", detail) from exc
    except (OSError, ParseException) as exc:  # a peer that stopped sending, chunks that are none
        raise Refusal("malformed_http", "The body could not be read to its end.") from exc
    g.log["received"] = len(raw)
    if request.content_length is None and len(raw) >= (request.max_content_length or 0):
        raise RequestEntityTooLarge
    if raw and request.mimetype != "application/json":
        raise Refusal("unsupported_media_type", "Send JSON with the header 'Content-Type: application/json'.")
    if request.content_length is not None and len(raw) != request.content_length:
        raise errors.Invalid("body", "The body is shorter than its Content-Length says.")
    return raw


def _fields(raw: bytes) -> dict[str, Any]:
    if not raw:
        return {}
    try:
        if len(raw) > SMALL_BODY and _has_many_parts(raw):
            raise ValueError("it has too many parts; large data belongs into one string")
        text = raw.decode("utf-8")
        fields = json.loads(
            text,
            object_pairs_hook=_without_doubles,
            parse_int=_int,
            parse_float=_float,
            parse_constant=_no_constant,
        )
        if "\\ud" in text or "\\uD" in text:
            json.dumps(fields, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as exc:
        raise errors.Invalid("body", f"The body is not valid JSON: {_reason(exc)}.") from exc
    if not isinstance(fields, dict):
        raise errors.Invalid("body", "The body must be a JSON object.")
    return fields


def _has_many_parts(raw: bytes) -> bool:
    """Whether too much of it is outside of strings. As quick for any bytes, JSON or not.

    What is escaped is taken out as if all of it were inside of strings: the parser does not get beyond the
    first backslash that is not. Between two strings there is a comma at least, so that quotes count, too.
    """
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 2 * _MOST_STRUCTURE:
        return True
    return sum(map(len, plain.split(b'"')[::2])) > _MOST_STRUCTURE


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name occurs twice")
    return fields


def _int(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError("a number is too long")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError("a number is too large")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _reason(exc: Exception) -> str:
    if isinstance(exc, RecursionError):
        return "it is nested too deeply"
    if isinstance(exc, UnicodeError):
        return "it is not UTF-8 text"
    return str(exc)[:200]


def _checked(model: type[Model], fields: dict[str, Any], strict: bool = True) -> Model:
    try:
        return model.model_validate(fields, strict=strict)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        field = _path(first["loc"])
        raise errors.Invalid(field, _sentence(field, first["type"], first["msg"])) from exc


def _path(location: tuple[int | str, ...]) -> str:
    """The field's name, without pydantic's tags for the branches of a union."""
    names = [str(part) for part in location if str(part) not in ("str", "list[str]", "function-after")]
    return ".".join(names)[:200] or "body"


def _sentence(field: str, kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return f"There is no field '{field}'. GET /docs lists the fields."
    if kind == "missing":
        return f"The field '{field}' is missing."
    if field == "command" and kind in ("string_type", "list_type"):
        return "'command' must be a text, or a list of texts."
    if kind in _PLAIN_WORDS:
        return f"'{field}' must be {_PLAIN_WORDS[kind]}."
    if kind == "string_pattern_mismatch":
        return f"'{field}' must be {_PATTERNS.get(field, 'of another form; GET /docs says which')}."
    message = message.removeprefix("Value error, ")
    start = message[:1].lower() if message[1:2].islower() else message[:1]
    return f"'{field}': {start}{message[1:]}."


_PLAIN_WORDS = {
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "an object of names and texts",
    "model_type": "an object",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
}
_PATTERNS = {
    "shell": "1 to 64 letters, digits, dots, dashes and underscores",
    "cursor": "the next_cursor of an earlier answer",
}
