"""Answers, read: JSON, or an error translated once. Nothing here touches the network."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from .errors import BY_CODE, BY_STATUS, SandboxError, UnexpectedAnswer
from .wire import Answer

MEMBERS_OF_PROBLEM = {"type", "title", "status", "detail", "code", "retryable", "request_id"}


def checked(answer: Answer) -> Answer:
    """The answer, if it is a good one."""
    if 300 <= answer.status < 400:
        target = answer.headers.get("Location", "elsewhere")
        raise UnexpectedAnswer(
            f"{answer.url} redirects to {target}. The key is not sent there: set url to the right address.",
            status=answer.status,
        )
    if answer.status >= 400:
        raise _refusal(answer, _json_object(answer.content) or {})
    return answer


def content(answer: Answer) -> dict[str, Any]:
    """The JSON of a good answer; empty where nothing was to be said."""
    found = _json_object(answer.content)
    if found is None and answer.status != 204:
        raise UnexpectedAnswer(
            f"{answer.url} did not answer with JSON. Is this url a sandbox server?", status=answer.status
        )
    return found or {}


def problem(body: Mapping[str, Any], status: int | None, headers: Mapping[str, str]) -> SandboxError:
    """The error that a problem with a code stands for."""
    code = str(body.get("code"))
    message = str(body.get("detail") or body.get("title") or code)
    kind = BY_CODE.get(code, SandboxError)
    if code == "not_found" and "path" not in body:  # not a file: this server has no such route
        kind = UnexpectedAnswer
    return _error(kind, message, body, status, headers)


def _refusal(answer: Answer, body: Mapping[str, Any]) -> SandboxError:
    if isinstance(body.get("code"), str):
        return problem(body, answer.status, answer.headers)
    kind = BY_STATUS.get(answer.status, UnexpectedAnswer)
    heard = f"{answer.url} answered {answer.status} {answer.reason}"
    body = {**body, "code": None, "retryable": answer.status == 503}
    return _error(
        kind, f"{heard}, not as a sandbox server does. Check url.", body, answer.status, answer.headers
    )


def _error(
    kind: type[SandboxError],
    message: str,
    body: Mapping[str, Any],
    status: int | None,
    headers: Mapping[str, str],
) -> SandboxError:
    return kind(
        message,
        code=body.get("code"),
        status=status,
        retryable=body.get("retryable") is True,
        retry_after=_retry_after(headers.get("Retry-After")),
        request_id=body.get("request_id") or headers.get("X-Request-Id"),
        extras={name: value for name, value in body.items() if name not in MEMBERS_OF_PROBLEM},
    )


def _json_object(raw: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(raw)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _retry_after(header: str | None) -> float | None:
    if header is None:
        return None
    if header.strip().isdecimal():
        return float(header)
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (TypeError, ValueError):  # TypeError before Python 3.10
        return None
