"""What tests expect, said once: what every error must look like, and what must come to be."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Protocol


class Answered(Protocol):
    """What requests' and werkzeug's answers have in common."""

    status_code: int
    text: Any
    headers: Any


def problem(answer: Answered, status: int, code: str) -> dict[str, Any]:
    """The body of a problem that says what it should, completely."""
    text = str(answer.text)
    assert answer.headers["Content-Type"].startswith("application/problem+json"), text[:300]
    body: dict[str, Any] = json.loads(text)
    assert (answer.status_code, body["status"], body["code"]) == (status, status, code), body
    assert body["detail"] and body["title"] and body["type"].endswith(code)
    assert isinstance(body["retryable"], bool)
    assert body["request_id"] == answer.headers["X-Request-Id"]
    assert "Traceback" not in text
    return body


def refused(answer: Answered, field: str) -> None:
    """A 400 that names what to change."""
    assert problem(answer, 400, "invalid_request")["field"] == field


def ended(answer: Answered, cause: str) -> None:
    body = problem(answer, 410, "session_ended")
    assert (body["cause"], body["retryable"]) == (cause, False)
    assert body["ended_at"].endswith("Z")


def eventually(check: Callable[[], bool], seconds: float = 30) -> None:
    """It comes to be; on a slow machine later."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.02)
