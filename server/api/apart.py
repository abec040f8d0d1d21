"""Work on disk in threads of its own: a write that waits for the disk must not hold up a whole worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gevent.threadpool import ThreadPool

_THREADS = 4


class Apart:
    """The threads are made at first use: gunicorn forks between the wiring and the first request."""

    def __init__(self) -> None:
        self._pool: ThreadPool | None = None

    def __call__(self, work: Callable[..., Any], *args: Any) -> Any:
        if self._pool is None:
            self._pool = ThreadPool(_THREADS)
        return self._pool.apply(work, args)
