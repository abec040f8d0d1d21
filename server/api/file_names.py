"""Names of files where HTTP has them: in queries, in headers and in JSON. They may be any bytes."""

from __future__ import annotations

import base64
import re
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote

from flask import request

from server.api import parse
from server.api.file_models import OnePath, decoded
from server.errors import Invalid
from server.file_answers import Entry
from server.tickets import file_binding
from server.times import timestamp

_MOST_PARAMETERS = 16
_ODD = re.compile(r"[^A-Za-z0-9 ._-]")
# What a browser shows but never runs; everything else is just bytes.
_TYPES = {
    **dict.fromkeys(("txt", "log", "md", "py", "csv", "tsv", "yaml", "yml", "toml", "ini"), "text/plain"),
    "json": "application/json",
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "pdf": "application/pdf",
    "zip": "application/zip",
    "gz": "application/gzip",
    "mp4": "video/mp4",
    "mp3": "audio/mpeg",
}

Model = TypeVar("Model", bound=OnePath)


def query_of(model: type[Model]) -> tuple[Model, bytes]:
    """The query, and the path in it as the bytes it was sent as: percent-encoding can say any."""
    fields = _raw_query()
    path = fields.get("path")
    texts = {name: value.decode("utf-8", "replace") for name, value in fields.items()}
    asked = parse.query_of(model, texts)
    return asked, asked.place if path is None or asked.path_base64 is not None else path


def bound_in_query() -> str:
    """What a ticket for a file must be bound to, to be good for this request: all of what it asks for.

    A query that names no place, or two, is refused later; till then it is bound to nothing.
    """
    fields = _raw_query()
    mode, encoded = fields.get("mode"), fields.get("path_base64")
    try:
        place = fields["path"] if encoded is None else decoded(encoded.decode("latin-1"))
    except (KeyError, ValueError):
        return ""
    return file_binding(place, None if mode is None else mode.decode("latin-1"))


def _raw_query() -> dict[str, bytes]:
    try:
        pairs = parse_qsl(
            request.query_string.decode("latin-1"),
            keep_blank_values=True,
            encoding="latin-1",
            max_num_fields=_MOST_PARAMETERS,
        )
    except ValueError as exc:
        raise Invalid("query", f"There are more than {_MOST_PARAMETERS} parameters.") from exc
    fields: dict[str, bytes] = {}
    for name, value in pairs:
        fields.setdefault(name[:200], value.encode("latin-1"))
    return fields


def entry_as_json(entry: Entry) -> dict[str, Any]:
    told: dict[str, Any] = {
        **path_as_json(entry.path),
        "name": entry.path.rpartition(b"/")[2].decode("utf-8", "replace"),
        "type": entry.kind,
        "size": entry.size,
        "mode": f"{entry.mode:04o}",
        "modified_at": timestamp(entry.modified_at),
        "etag": entry.etag,
    }
    if entry.target is not None:
        told["target"] = entry.target.decode("utf-8", "replace")
    return told


def path_as_json(path: bytes) -> dict[str, str]:
    """As text, and as bytes only where the text cannot be turned back."""
    text = path.decode("utf-8", "replace")
    if text.encode() == path:
        return {"path": text}
    return {"path": text, "path_base64": base64.b64encode(path).decode()}


def disposition(path: bytes) -> str:
    """Saved, never shown, under its own name: twice, for those who do not know the newer way."""
    name = path.rpartition(b"/")[2].decode("utf-8", "replace")
    plain = _ODD.sub("_", name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def content_type(path: bytes) -> str:
    ending = path.rpartition(b".")[2].decode("latin-1").lower()
    return _TYPES.get(ending, "application/octet-stream")


def query_text(path: bytes) -> str:
    return quote(path, safe="/")
