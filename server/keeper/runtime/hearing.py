"""Calls to an engine, told to whoever listens: how long each took, and in a word how it failed, if it did."""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from typing import Any

Heard = Callable[[float, str | None], None]


class HeardCalls:
    """What a client of an engine is made of besides: all its calls pass through `request`."""

    ordinary: Container[int] = ()  # statuses of answers that are no refusals
    heard: Heard | None = None

    def request(self, method: Any, url: Any, *args: Any, **kwargs: Any) -> Any:
        """A long wait that ends without an answer has not failed."""
        began = time.monotonic()
        failure: str | None = "silent"
        try:
            response = super().request(method, url, *args, **kwargs)  # type: ignore[misc] # the client's own
            failure = None if response.status_code in self.ordinary else "refused"
            return response
        finally:
            if self.heard is not None and not str(url).endswith("/wait"):
                self.heard(time.monotonic() - began, failure)
