"""/execute and /v1/sessions/{id}/executions: commands as resources, from start to end."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from flask import Blueprint, Response, g, jsonify, request

from server import errors, results
from server.api import acts, events, models, parse, telling
from server.api.hangup import noticed
from server.api.limits import command_of
from server.api.transfers import sent, still_authorized
from server.api.wiring import named, parts, tenant
from server.guest_answers import Batch, Told
from server.guest_client import Command
from server.names import Name, name_for
from server.spending import Spending

bp = Blueprint("executions", __name__)
_WORTH_WATCHING = 1.0

Answered = Response | tuple[Response, int]


@bp.post("/execute")
def execute() -> Answered:
    with parts().large_bodies.place():
        asked = parse.body_of(models.Execute)
        command = command_of(asked, parts().config)
    return execute_in_session(asked.session_id, *_without_body(asked, asked.session_id), command)


@bp.post("/v1/sessions/<session_id>/execute")
def execute_in(session_id: str) -> Answered:
    with parts().large_bodies.place():
        asked = parse.body_of(models.RunCommand)
        command = command_of(asked, parts().config)
    return execute_in_session(session_id, *_without_body(asked, session_id), command)


@bp.post("/v1/sessions/<session_id>/executions")
def start(session_id: str) -> Answered:
    with parts().large_bodies.place():
        asked = parse.body_of(models.RunCommand)
        command = command_of(asked, parts().config)
    mode, name = _without_body(asked, session_id)
    if mode["stream"]:
        return _stream(session_id, mode, name, command)
    wait = _wait(mode)
    wait = 2 * command.timeout if wait is None else wait
    with caller_present():
        told = parts().executions.start(tenant(), named(session_id), command, name, wait)
    parts().meters.started("background")
    return telling.execution(told, session_id), 201


@bp.get("/v1/sessions/<session_id>/executions")
def list_executions(session_id: str) -> Response:
    found = parts().executions.list(tenant(), named(session_id))
    return jsonify({"executions": [results.execution_as_json(one, session_id) for one in found]})


@bp.get("/v1/sessions/<session_id>/executions/<execution_id>")
def get(session_id: str, execution_id: str) -> Response:
    asked = parse.query_of(models.GetExecution, request.args.to_dict())
    ask = parts().executions.await_end if asked.wait else parts().executions.tell
    with caller_present():
        told = ask(tenant(), named(session_id), execution_id, asked.wait)
    return telling.execution(told, session_id, asked_again=True)


@bp.delete("/v1/sessions/<session_id>/executions/<execution_id>")
def delete(session_id: str, execution_id: str) -> tuple[str, int]:
    parts().executions.cancel(tenant(), named(session_id), execution_id)
    return "", 204


@bp.post("/v1/sessions/<session_id>/executions/<execution_id>/signal")
def signal(session_id: str, execution_id: str) -> tuple[str, int]:
    number = parse.body_of(models.Signal).number
    if number is None:
        raise errors.Invalid("signal", "There is no such signal. Send a name such as SIGINT, or its number.")
    parts().executions.signal(tenant(), named(session_id), execution_id, number)
    return "", 204


@bp.post("/v1/sessions/<session_id>/executions/<execution_id>/input")
def send_input(session_id: str, execution_id: str) -> tuple[str, int]:
    with parts().large_bodies.place():
        asked = parse.body_of(models.Input)
    parts().executions.input(tenant(), named(session_id), execution_id, asked.sent, asked.close)
    return "", 204


@bp.post("/v1/sessions/<session_id>/executions/<execution_id>/resize")
def resize(session_id: str, execution_id: str) -> tuple[str, int]:
    asked = parse.body_of(models.Screen)
    parts().executions.resize(tenant(), named(session_id), execution_id, asked.cols, asked.rows)
    return "", 204


@bp.get("/v1/sessions/<session_id>/executions/<execution_id>/events")
def follow_events(session_id: str, execution_id: str) -> Answered | tuple[str, int]:
    asked = parse.query_of(models.Follow, request.args.to_dict())
    after = asked.after if (seen := events.last_event_id()) is None else seen
    told = parts().executions.tell(tenant(), named(session_id), execution_id)
    end = told.execution.total + 1
    if after is not None and after >= end and told.execution.status == "ended":
        return "", 204  # nothing will follow: a browser that reconnects stops here
    if after is not None and after >= end:
        raise errors.Invalid("after", f"The log ends at {end - 1} so far.")
    return events.response(events.Following(tenant(), session_id, told, after))


@bp.get("/v1/sessions/<session_id>/executions/<execution_id>/log")
def log(session_id: str, execution_id: str) -> Response:
    asked = parse.query_of(models.GetLog, request.args.to_dict())
    told = parts().executions.tell(tenant(), named(session_id), execution_id).execution
    leave = parts().executions.enter_stream(tenant(), session_id)
    pieces = _pieces(partial(parts().executions.read, tenant(), session_id, execution_id), told.total)
    body = (data for stream, data in pieces if asked.stream in (None, stream))
    response = Response(sent(body, nullcontext(), still_authorized()), mimetype="application/octet-stream")
    response.call_on_close(leave)
    response.headers["Content-Disposition"] = 'attachment; filename="execution.log"'
    sizes = {None: told.total, "stdout": told.stdout_bytes, "stderr": told.stderr_bytes}
    response.headers["X-Log-Bytes"] = str(sizes[asked.stream])
    if told.missing:
        response.headers["X-Log-Missing"] = ",".join(f"{begin}-{end}" for begin, end in told.missing)
    return response


def _pieces(read: Callable[[int], Batch], until: int) -> Iterator[tuple[str, bytes]]:
    """What is kept of the log, as long as it was when it was asked for."""
    at = 0
    while at < until:
        try:
            batch = read(at)
        except errors.SandboxError as exc:  # too late for a problem: what is cut off must not look whole
            raise ConnectionResetError(errno.ECONNRESET, exc.code) from exc
        if batch.end <= at:
            return
        at = batch.begin
        for stream, data in batch.pieces:
            yield stream, data[: max(0, until - at)]
            at += len(data)


def caller_present() -> AbstractContextManager[None]:
    """Who hangs up while a command runs, or whose key is withdrawn, is not waited for."""
    return noticed(request.environ.get("gunicorn.socket"), _WORTH_WATCHING, still_authorized())


def _without_body(asked: models.RunCommand, session_id: str) -> tuple[dict[str, Any], Name]:
    """How it shall be answered and what it is called: all that is kept of a large body while it runs."""
    mode = {name: getattr(asked, name) for name in ("background", "wait", "stream", "kill_on_disconnect")}
    fingerprint = g.get("fingerprint", "")
    name = name_for(session_id, asked.execution_id, fingerprint, parse.idempotency())
    acts.note(execution_id=name.id)
    return mode, name


def _wait(mode: dict[str, Any]) -> float | None:
    wait: float | None = 0.0 if mode["background"] else mode["wait"]
    return wait


def execute_in_session(session_id: str, mode: dict[str, Any], name: Name, command: Command) -> Answered:
    if mode["stream"]:
        return _stream(session_id, mode, name, command)
    wait = _wait(mode)
    if wait is None:
        began = time.monotonic()
        with caller_present():
            answer = parts().executions.run(tenant(), named(session_id), command, name)
        parts().meters.executed(time.monotonic() - began, answer)
        acts.note(exit_code=answer.exit_code, **({} if answer.new else {"repeated": True}))
        return telling.result(answer, session_id, name.id)
    with caller_present():
        told = parts().executions.start(tenant(), named(session_id), command, name, wait)
    parts().meters.started("background")
    if told.answer is not None:
        return telling.result(told.answer, session_id, name.id)
    return telling.execution(told, session_id), 202


def _stream(session_id: str, mode: dict[str, Any], name: Name, command: Command) -> Response:
    start = partial(parts().executions.start, tenant(), named(session_id), command, name, 0, followed=True)
    return streamed(session_id, start, mode["kill_on_disconnect"])


def streamed(session_id: str, start: Callable[[], Told], kill_on_disconnect: bool) -> Response:
    # Counted before it is started: a refusal must start nothing.
    leave = parts().executions.enter_stream(tenant(), session_id)
    try:
        told = start()
    except BaseException:
        leave()
        raise
    leave = partial(_leave_and_finish, leave, tenant(), session_id, parts().spending)
    parts().meters.started("stream")
    following = events.Following(tenant(), session_id, told, None, kill_on_disconnect)
    return events.response(following, leave)


def _leave_and_finish(leave: Callable[[], None], tenant: str, session_id: str, spending: Spending) -> None:
    """Who followed an ephemeral session's command has seen all there is of it."""
    leave()
    spending.finish(tenant, session_id)
