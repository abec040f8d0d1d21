"""Paths in a sandbox: bytes without NUL, as Linux has them, of which most are UTF-8.

Here they are text. Bytes that are not UTF-8 become surrogates, as Python does it with the names of its own
files; in URLs and JSON the bytes travel as they are, percent-encoded or in base64.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from .errors import ConfigurationError
from .records import Record

if TYPE_CHECKING:
    from .file_infos import RemotePath


def text_of(path: RemotePath) -> str:
    """The path as text, whatever it was given as."""
    if isinstance(path, Record):
        path = str(path["path"])
    if isinstance(path, PurePath):
        path = path.as_posix()
    found = os.fspath(path)
    return found.decode("utf-8", "surrogateescape") if isinstance(found, bytes) else found


def raw(path: RemotePath) -> bytes:
    """The bytes that the path stands for."""
    try:
        return text_of(path).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as exc:
        raise ConfigurationError(f"Not a path: {exc}.") from exc


def fields(**named: RemotePath) -> dict[str, str]:
    """Paths as fields of a JSON request: `path`, or `path_base64` where it is not UTF-8."""
    found = {}
    for name, path in named.items():
        data = raw(path)
        try:
            found[name] = data.decode()
        except UnicodeDecodeError:
            found[f"{name}_base64"] = base64.b64encode(data).decode()
    return found


def told(answer: Mapping[str, Any], name: str = "path") -> str:
    """A path that the server tells."""
    encoded = answer.get(f"{name}_base64")
    if encoded is None:
        return str(answer.get(name) or "")
    return base64.b64decode(encoded).decode("utf-8", "surrogateescape")


def last_name(path: RemotePath) -> str:
    """The name at its end; empty for the likes of "." and "/"."""
    name = text_of(path).rstrip("/").rpartition("/")[2]
    return "" if name in (".", "..") else name


def joined(directory: RemotePath, name: str) -> str:
    """A name in a directory."""
    return f"{text_of(directory).rstrip('/')}/{name}" if text_of(directory) not in ("", ".") else name
