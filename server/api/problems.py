"""Errors as HTTP shows them (RFC 9457). The only module that knows statuses."""

from __future__ import annotations

import logging
from typing import Any

from flask import Flask, Response, g, jsonify, request
from werkzeug.exceptions import HTTPException

from server import errors

STATUSES = {
    "invalid_request": 400,
    "malformed_http": 400,
    "unauthorized": 401,
    "forbidden_origin": 403,
    "session_not_found": 404,
    "execution_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "idempotency_conflict": 409,
    "result_forgotten": 409,
    "execution_exists": 409,
    "execution_ended": 409,
    "no_stdin": 409,
    "no_terminal": 409,
    "session_ended": 410,
    "body_too_large": 413,
    "uri_too_long": 414,
    "unsupported_media_type": 415,
    "wrong_host": 421,
    "too_many_sessions": 429,
    "too_many_executions": 429,
    "too_many_streams": 429,
    "too_many_shells": 429,
    "shell_busy": 429,
    "stdin_full": 429,
    "rate_limited": 429,
    "headers_too_large": 431,
    "internal_error": 500,
    "keeper_unavailable": 503,
    "engine_unavailable": 503,
    "store_unavailable": 503,
    "guest_unavailable": 503,
    "server_busy": 503,
}

TITLES = {
    400: "The request cannot be carried out as it is",
    401: "A valid key is needed",
    403: "Not allowed",
    404: "Not found",
    405: "That method is not allowed here",
    409: "Conflict",
    410: "The session has ended",
    413: "The body is too large",
    414: "The request line is too long",
    415: "The body must be JSON",
    421: "This host name is not served here",
    429: "A limit is reached",
    431: "The headers are too large",
    500: "Something went wrong on our side",
    503: "Not available right now",
}

# On every answer, good or bad: nothing of ours is to be guessed at, framed, kept or run by a browser.
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; frame-ancestors 'none'",
}

_log = logging.getLogger("sandbox.web")


class Refusal(errors.SandboxError):
    """A request turned away before it reaches the domain."""

    def __init__(self, code: str, detail: str, **extras: object) -> None:
        super().__init__(detail, **extras)
        self.code = code  # type: ignore[misc] # one class for what only HTTP can get wrong


def problem_body(code: str, detail: str, request_id: str, retryable: bool = False) -> dict[str, Any]:
    return {
        "type": f"urn:sandbox-server:problem:{code}",
        "title": TITLES[STATUSES[code]],
        "status": STATUSES[code],
        "detail": detail,
        "code": code,
        "retryable": retryable,
        "request_id": request_id,
    }


def problem_as_json(error: errors.SandboxError, request_id: str) -> dict[str, Any]:
    return {**problem_body(error.code, error.detail, request_id, error.retryable), **error.extras}


def problem(error: errors.SandboxError) -> Response:
    status = STATUSES[error.code]
    body = problem_as_json(error, g.get("request_id", ""))
    response = jsonify({**body, "retryable": _retryable(error)})
    response.status_code = status
    response.mimetype = "application/problem+json"
    retry_after = getattr(error, "retry_after", None) or error.extras.get("retry_after")
    if retry_after is not None:
        response.headers["Retry-After"] = str(retry_after)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _retryable(error: errors.SandboxError) -> bool:
    """A command that may have run is safe to repeat only when an idempotency key names it."""
    if isinstance(error, errors.GuestUnavailable):
        return "Idempotency-Key" in request.headers
    return error.retryable


_HTTP_CODES = {
    404: "not_found",
    405: "method_not_allowed",
    413: "body_too_large",
    415: "unsupported_media_type",
}


def _from_http(exc: HTTPException) -> Response:
    """What Flask and werkzeug refuse by themselves."""
    status = exc.code or 500
    if 300 <= status < 400:
        status = 404  # no redirects: a wrong path is a wrong path
    code = _HTTP_CODES.get(status, "invalid_request" if 400 <= status < 500 else "internal_error")
    detail = {
        "not_found": "There is no such path. GET /docs lists what there is.",
        "method_not_allowed": "Use another method; GET /docs lists them.",
        "body_too_large": f"The body may have {request.max_content_length} bytes at most.",
    }.get(code, "The request could not be understood.")
    response = problem(Refusal(code, detail))
    if isinstance(allowed := getattr(exc, "valid_methods", None), list):
        response.headers["Allow"] = ", ".join(sorted(allowed))
    return response


def register(app: Flask) -> None:
    app.register_error_handler(errors.SandboxError, problem)
    app.register_error_handler(HTTPException, _from_http)

    @app.errorhandler(ConnectionResetError)
    def gone(exc: ConnectionResetError) -> Response:
        """The caller has hung up: nobody reads this."""
        return Response(status=204)

    @app.errorhandler(Exception)
    def unexpected(exc: Exception) -> Response:
        """The edge of a request: whatever we did not foresee is logged in full and told in one sentence."""
        _log.exception("a request failed", extra={"fields": {"request_id": g.get("request_id", "")}})
        detail = "The server failed. Its log has the details under this request_id."
        return problem(Refusal("internal_error", detail))
