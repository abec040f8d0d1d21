"""An execution's result as callers see it: text beside bytes, truncation told, nothing to be guessed."""

from __future__ import annotations

import base64
from typing import Any

from server.guest_answers import Answer, Execution, Stream, Told
from server.guest_client import refusal_of
from server.times import timestamp


def as_json(answer: Answer, session_id: str, execution_id: str) -> dict[str, Any]:
    result = facts(answer, session_id, execution_id)
    for name, stream in _streams(answer).items():
        text, lossless = _text(stream)
        result[name] = text
        if not lossless:
            result[f"{name}_base64"] = base64.b64encode(stream.first + stream.last).decode()
    return result


def facts(answer: Answer, session_id: str, execution_id: str) -> dict[str, Any]:
    """The result without what was printed."""
    return {
        "execution_id": execution_id,
        "session_id": session_id,
        "status": "ended",
        "exit_code": answer.exit_code,
        "signal": answer.signal,
        "timed_out": answer.timed_out,
        "cancelled": answer.cancelled,
        "oom_killed": answer.oom_killed,
        "truncated": any(_omitted(stream) for stream in _streams(answer).values()),
        "duration_ms": round(answer.seconds * 1000, 3),
        "cpu_seconds": round(answer.cpu_seconds, 3),
        "peak_memory": answer.peak_memory,
        "cwd": answer.cwd,
        "shell_restarted": answer.restarted,
        "stdout_bytes": answer.stdout.total,
        "stderr_bytes": answer.stderr.total,
        "value": answer.value,
        "error": answer.error,
    }


def execution_as_json(execution: Execution, session_id: str) -> dict[str, Any]:
    return {
        "execution_id": execution.id,
        "session_id": session_id,
        "status": execution.status,
        "command": execution.command,
        "language": execution.language,
        "shell": execution.shell,
        "pty": execution.screen is not None,
        "exit_code": execution.exit_code,
        "started_at": timestamp(execution.started_at),
        "ended_at": None if execution.ended_at is None else timestamp(execution.ended_at),
        "stdout_bytes": execution.stdout_bytes,
        "stderr_bytes": execution.stderr_bytes,
        "cpu_seconds": round(execution.cpu_seconds, 3),
        "peak_memory": execution.peak_memory,
        "seq": execution.total,
        "missing": execution.missing,
    }


def told_as_json(told: Told, session_id: str) -> dict[str, Any]:
    """An execution with its result, if it has one, or with the code of the problem for which it never ran."""
    answer = told.answer
    result = None if answer is None else as_json(answer, session_id, told.execution.id)
    refused = None if told.refusal is None else refusal_of(told.refusal, 0).code
    return {**execution_as_json(told.execution, session_id), "result": result, "refused": refused}


def _streams(answer: Answer) -> dict[str, Stream]:
    return {"stdout": answer.stdout, "stderr": answer.stderr, "output": answer.output}


def _omitted(stream: Stream) -> int:
    return max(0, stream.total - len(stream.first) - len(stream.last))


def _text(stream: Stream) -> tuple[str, bool]:
    """The stream as text, and whether that text holds every byte that was kept."""
    omitted = _omitted(stream)
    if not omitted:
        return _decode(stream.first + stream.last)
    first, first_whole = _decode(_without_cut_end(stream.first))
    last, last_whole = _decode(_without_cut_start(stream.last))
    return f"{first}\n... {omitted} bytes omitted ...\n{last}", first_whole and last_whole


def _without_cut_end(data: bytes) -> bytes:
    """Without a last character that the cut went through."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if 0xC2 <= byte <= 0xF4:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if back < needed else data
        if not 0x80 <= byte < 0xC0:
            break
    return data


def _without_cut_start(data: bytes) -> bytes:
    """Without the end of a character that the cut went through: three bytes at most."""
    start = 0
    while start < min(3, len(data)) and 0x80 <= data[start] < 0xC0:
        start += 1
    return data[start:]


def _decode(data: bytes) -> tuple[str, bool]:
    try:
        return data.decode(), True
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace"), False
