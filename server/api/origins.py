"""Which pages in a browser may reach us: our own, and those of SANDBOX_ORIGINS."""

from __future__ import annotations

from flask import Response, request

from server.config import Config
from server.errors import ForbiddenOrigin

_READABLE = "executions.follow_events"  # what a page of another origin may read, with a ticket


def check(config: Config) -> None:
    """A browser says which page asks. Other clients send no origin; theirs is the key or the ticket."""
    origin = request.headers.get("Origin")
    ours = {f"http://{request.host}".lower(), f"https://{request.host}".lower(), *config.origins}
    if origin is not None and origin.lower() not in ours:
        raise ForbiddenOrigin


def allow(response: Response, config: Config) -> None:
    """CORS, without which a browser would not let such a page see the events that it asked for."""
    if config.origins and request.endpoint == _READABLE:
        response.vary.add("Origin")
        origin = request.headers.get("Origin", "")
        if origin.lower() in config.origins:
            response.headers["Access-Control-Allow-Origin"] = origin
