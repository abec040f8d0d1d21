"""Where the server is and which key opens it: arguments, then the environment, then quickstart's file.

The key in the file goes only to the server named in the file, never to another address.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from .errors import ConfigurationError

DEFAULT_URL = "http://127.0.0.1:5000"


@dataclass(frozen=True)
class Credentials:
    """An address and the key for it."""

    url: str
    api_key: str = field(repr=False)


def find(url: str | None, api_key: str | None, environ: Mapping[str, str]) -> Credentials:
    """The credentials to use, or ConfigurationError that says how to give them."""
    url = url or environ.get("SANDBOX_URL") or None
    api_key = api_key or environ.get("SANDBOX_API_KEY") or None
    path = credentials_path(environ)
    written = None if url and api_key else _read(path)
    if url is None:
        url = written.url if written else DEFAULT_URL
    url = checked_url(url)
    if api_key is None and written and _server(url) == _server(written.url):
        api_key = written.api_key
    if api_key is None:
        raise ConfigurationError(_no_key(url, path, written))
    return Credentials(url, _checked_key(api_key))


def credentials_path(environ: Mapping[str, str]) -> Path:
    """Where quickstart writes."""
    home = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or "~", ".config")
    return Path(os.path.expanduser(home), "sandbox", "credentials.json")


def is_loopback(url: str) -> bool:
    """Whether this address is on this very machine."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def checked_url(url: str) -> str:
    """The address without a trailing slash, or ConfigurationError."""
    url = url.strip().rstrip("/")
    if not _is_plain_http(url):
        # The address itself is not shown: it may hold a password.
        raise ConfigurationError(
            "The server's url must look like http://127.0.0.1:5000 or https://sandbox.example.com, "
            "without a user name, query or fragment. Check url=... or SANDBOX_URL."
        )
    return url


def _is_plain_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises when it is not a number in range
    except ValueError:
        return False
    extra = "@" in parts.netloc or parts.query or parts.fragment
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and not extra


def _checked_key(api_key: str) -> str:
    api_key = api_key.strip()
    if not re.fullmatch(r"[!-~]+", api_key):
        raise ConfigurationError("The API key must be visible ASCII without spaces. Check SANDBOX_API_KEY.")
    return api_key


def _read(path: Path) -> Credentials | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise ConfigurationError(
            f"{path} cannot be read ({exc.__class__.__name__}). Run ./quickstart.sh again, "
            "or set SANDBOX_URL and SANDBOX_API_KEY."
        ) from exc
    url = content.get("url") if isinstance(content, dict) else None
    api_key = content.get("api_key") if isinstance(content, dict) else None
    if not isinstance(url, str) or not isinstance(api_key, str):
        raise ConfigurationError(
            f'{path} must hold {{"url": ..., "api_key": ...}}. Run ./quickstart.sh again.'
        )
    return Credentials(checked_url(url), api_key)


def _server(url: str) -> tuple[str, str | None, int | None, str]:
    parts: SplitResult = urlsplit(url)
    host = "localhost" if is_loopback(url) else parts.hostname
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, host, port, parts.path


def _no_key(url: str, path: Path, written: Credentials | None) -> str:
    found = f"{path} has a key, but for {written.url}." if written else f"There is no {path} either."
    return (
        f"No API key for {url}. Pass api_key=..., or set SANDBOX_API_KEY (and SANDBOX_URL), "
        f"or run ./quickstart.sh on this machine. {found}"
    )
