"""How often somebody may ask: by tenant and kind of request, and by address for those without a key.

flask-limiter's storages count; windows are fixed and begin with the clock, so that a counter's end needs no
asking. While a shared storage (Redis) does not answer, each server counts for itself: see ADR 20.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flask import Flask, Response
from flask_limiter import Limiter
from limits import parse
from limits.storage import Storage

from server.api.problems import Refusal
from server.api.windows import SharedStorage
from server.config import Config

_TIMEOUT = 0.25  # seconds for Redis to answer
_PAUSE = 5.0  # seconds without asking it after it did not
_CONNECTIONS = 1000
_CREATING = {"sessions.create_session", "sessions.create", "snapshots.fork", "run.run"}
_EXECUTING = {
    "executions.execute",
    "executions.execute_in",
    "executions.start",
    "executions.send_input",
    "terminal.open_terminal",
}
_FILES = {"files", "contents", "archives", "searching", "watching", "uploads", "workspaces", "snapshots"}

_WHAT = {
    "address": "requests without a key from this address",
    "failures": "failed attempts from this address",
}

CLASSES = ("create", "execute", "files", "read")

_log = logging.getLogger("sandbox.web")


def class_of(endpoint: str | None) -> str:
    if endpoint in _EXECUTING:
        return "execute"
    if endpoint in _CREATING:
        return "create"
    return "files" if (endpoint or "").partition(".")[0] in _FILES else "read"


@dataclass(frozen=True)
class Standing:
    """Where a caller stands within a window; `reset` is in seconds."""

    name: str
    limit: int
    window: int
    used: int
    reset: int

    @property
    def exceeded(self) -> bool:
        return self.used > self.limit

    def refusal(self) -> Refusal:
        what = _WHAT.get(self.name, f"requests of the kind '{self.name}' of this tenant")
        refusal = Refusal(
            "rate_limited",
            f"Too many {what}: the limit is {self.limit} in {self.window} seconds.",
            limit=f"rate_{self.name}",
            used=self.used,
            allowed=self.limit,
            retry_after=self.reset,
        )
        refusal.retryable = True
        return refusal

    def tell(self, response: Response) -> None:
        left = max(0, self.limit - self.used)
        headers = response.headers
        headers.add("RateLimit-Limit", str(self.limit))
        headers.add("RateLimit-Remaining", str(left))
        headers.add("RateLimit-Reset", str(self.reset))
        headers.add("RateLimit-Policy", f'"{self.name}";q={self.limit};w={self.window}')


class Rates:
    def __init__(
        self, config: Config, shared: Storage, own: Storage, clock: Callable[[], float] = time.time
    ) -> None:
        self._shared = shared
        self._own = own
        self._clock = clock
        self._silent_until = 0.0
        self._items = {
            "create": parse(config.rate_create),
            "execute": parse(config.rate_execute),
            "files": parse(config.rate_files),
            "read": parse(config.rate_read),
            "address": parse(config.rate_address),
            "failures": parse(config.failure_limit),
        }

    def hit(self, name: str, whose: str) -> Standing:
        """One more."""
        return self._stand(name, whose, lambda storage, key, window: storage.incr(key, window))

    def look(self, name: str, whose: str) -> Standing:
        """Without one more."""
        return self._stand(name, whose, lambda storage, key, window: storage.get(key))

    def _stand(self, name: str, whose: str, ask: Callable[[Storage, str, int], int]) -> Standing:
        item, now = self._items[name], self._clock()
        window = item.get_expiry()
        used = self._asked(f"{name}/{whose}/{now // window:.0f}", window, ask)
        return Standing(name, item.amount, window, used, math.ceil(window - now % window))

    def _asked(self, key: str, window: int, ask: Callable[[Storage, str, int], int]) -> int:
        if self._shared is self._own or self._clock() < self._silent_until:
            return ask(self._own, key, window)
        try:
            return ask(self._shared, key, window)
        except self._shared.base_exceptions as exc:
            self._silent_until = self._clock() + _PAUSE
            words = "the storage of rate limits does not answer: this server counts for itself for a while"
            _log.warning("%s (%s)", words, type(exc).__name__)
        return ask(self._own, key, window)


def rates_of(app: Flask, config: Config, address: Callable[[], str], path: Path | None = None) -> Rates:
    """flask-limiter finds the storages. It puts no hooks of its own around requests: the gate asks."""
    path = path or config.store_path.with_name("rates")
    embedded: dict[str, object] = {"path": str(path), "workers": config.web_workers}
    own = _limiter(app, address, f"{SharedStorage.STORAGE_SCHEME[0]}://", embedded)
    if config.ratelimit_storage == "embedded":
        return Rates(config, own, own)
    return Rates(config, _limiter(app, address, config.ratelimit_storage, _redis_options()), own)


def _redis_options() -> dict[str, object]:
    from redis.backoff import NoBackoff  # only where it is asked for
    from redis.retry import Retry

    return {
        "socket_timeout": _TIMEOUT,
        "socket_connect_timeout": _TIMEOUT,
        "max_connections": _CONNECTIONS,
        "retry": Retry(NoBackoff(), 0),
    }


def _limiter(app: Flask, address: Callable[[], str], uri: str, options: dict[str, object]) -> Storage:
    limiter = Limiter(address, storage_uri=uri, storage_options=options)  # type: ignore[arg-type] # any option
    app.extensions["limiter"] = {limiter}
    limiter.init_app(app)
    return limiter.limiter.storage
