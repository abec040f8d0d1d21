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
    "invalid_path": 400,
    "invalid_archive": 400,
    "unauthorized": 401,
    "forbidden_origin": 403,
    "permission_denied": 403,
    "forbidden": 403,
    "scope_missing": 403,
    "tenant_suspended": 403,
    "session_not_found": 404,
    "execution_not_found": 404,
    "workspace_not_found": 404,
    "snapshot_not_found": 404,
    "upload_not_found": 404,
    "tenant_not_found": 404,
    "key_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "operation_timeout": 408,
    "is_directory": 409,
    "not_a_directory": 409,
    "not_a_regular_file": 409,
    "already_exists": 409,
    "directory_not_empty": 409,
    "text_not_found": 409,
    "text_not_unique": 409,
    "file_changed": 409,
    "idempotency_conflict": 409,
    "result_forgotten": 409,
    "execution_exists": 409,
    "execution_ended": 409,
    "workspace_in_use": 409,
    "nothing_to_undo": 409,
    "tenant_quota": 409,
    "tenant_exists": 409,
    "no_stdin": 409,
    "no_terminal": 409,
    "session_ended": 410,
    "precondition_failed": 412,
    "body_too_large": 413,
    "too_large": 413,
    "uri_too_long": 414,
    "unsupported_media_type": 415,
    "range_not_satisfiable": 416,
    "wrong_host": 421,
    "too_many_sessions": 429,
    "too_many_snapshots": 429,
    "too_many_executions": 429,
    "too_many_streams": 429,
    "too_many_shells": 429,
    "too_many_uploads": 429,
    "too_many_keys": 429,
    "shell_busy": 429,
    "stdin_full": 429,
    "rate_limited": 429,
    "quota_exceeded": 429,
    "headers_too_large": 431,
    "internal_error": 500,
    "storage_unsupported": 501,
    # These two are told by deploy/nginx.conf alone.
    "no_answer": 502,
    "server_unavailable": 503,
    "keeper_unavailable": 503,
    "engine_unavailable": 503,
    "store_unavailable": 503,
    "guest_unavailable": 503,
    "server_busy": 503,
    "host_full": 503,
    "storage_full": 503,
    "disk_full": 507,
}

# Refused for who asked, for what, or how often: the audit has these of every method.
DENIALS = {
    code
    for code, status in STATUSES.items()
    if status in (401, 403, 421, 429) or (status == 404 and code != "not_found")
}
# Not the caller's doing. Whoever hangs up, or is interrupted, does not learn what came of it.
FAILURES = {code for code, status in STATUSES.items() if status >= 500} | {"client_gone", "interrupted"}

TITLES = {
    400: "The request cannot be carried out as it is",
    401: "A valid key is needed",
    403: "Not allowed",
    404: "Not found",
    408: "It took too long",
    405: "That method is not allowed here",
    409: "Conflict",
    410: "The session has ended",
    412: "The file is another one",
    413: "The body is too large",
    414: "The request line is too long",
    416: "There is no such range",
    415: "The body is not of the kind that is taken here",
    421: "This host name is not served here",
    429: "A limit is reached",
    431: "The headers are too large",
    500: "Something went wrong on our side",
    501: "This server cannot do that",
    502: "The server did not answer",
    503: "Not available right now",
    507: "The disk is full",
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
    _note(error)
    g.code = error.code
    body = problem_as_json(error, g.get("request_id", ""))
    response = jsonify({**body, "retryable": _retryable(error)})
    response.status_code = status
    response.mimetype = "application/problem+json"
    retry_after = getattr(error, "retry_after", None) or error.extras.get("retry_after")
    if retry_after is not None:
        response.headers["Retry-After"] = str(retry_after)
    if error.code == "range_not_satisfiable":
        response.headers["Content-Range"] = f"bytes */{error.extras['size']}"
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _note(error: errors.SandboxError) -> None:
    """For the log, and to be counted."""
    fields = g.get("log", {})
    fields["code"] = error.code
    if isinstance(limit := error.extras.get("limit"), str):
        fields["limit"] = limit


def _retryable(error: errors.SandboxError) -> bool:
    """A command that may have run is safe to repeat only when an idempotency key names it; a look is."""
    if isinstance(error, errors.GuestUnavailable):
        return "Idempotency-Key" in request.headers or request.method in ("GET", "HEAD")
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
        g.code = "client_gone"
        return Response(status=204)

    @app.errorhandler(Exception)
    def unexpected(exc: Exception) -> Response:
        """The edge of a request: whatever we did not foresee is logged in full and told in one sentence."""
        _log.exception("a request failed", extra={"fields": {"request_id": g.get("request_id", "")}})
        detail = "The server failed. Its log has the details under this request_id."
        return problem(Refusal("internal_error", detail))
