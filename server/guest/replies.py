"""What the guest says of executions: the words of its answers."""

from __future__ import annotations

from typing import Any, Tuple

from .executions import Execution
from .protocol import Body, Head
from .work import Outcome

_SHOWN = 1000  # characters of a command

Reply = Tuple[Head, Body]


def about(head: Head) -> Head:
    command = head["command"]
    text = command if isinstance(command, str) else " ".join(command)
    return {
        "command": text[:_SHOWN],
        "language": head["language"],
        "shell": head["shell"],
        "screen": head["screen"],
    }


def facts(execution: Execution) -> Head:
    usage, log = execution.usage(), execution.log
    return {
        **execution.about,
        "execution": execution.name,
        "status": execution.status,
        "exit_code": execution.answer[0]["exit_code"] if execution.answer else None,
        "started_at": execution.started_at,
        "ended_at": execution.ended_at,
        "stdout_bytes": log.counts[0],
        "stderr_bytes": log.counts[1],
        "cpu_seconds": usage.cpu_seconds,
        "peak_memory": usage.peak_memory,
        "total": log.total,
        "missing": log.missing,
    }


def result(outcome: Outcome, seconds: float, oom: bool, cancelled: bool, after: Head) -> tuple[Head, bytes]:
    """Three streams as head and tail in one body; `both` is left out where it equals the only one used."""
    captures = {**outcome.output.streams, "both": outcome.output.both}
    sizes: dict[str, Any] = {}
    body = bytearray()
    for name, capture in captures.items():
        if capture is None:
            continue
        first, last = capture.parts()
        sizes[name] = [len(first), len(last), capture.total]
        body += first + last
    head = {
        "ok": True,
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "timed_out": outcome.timed_out,
        "cancelled": cancelled,
        "oom_killed": oom,
        "restarted": outcome.restarted,
        "cwd": outcome.cwd,
        "seconds": seconds,
        "cpu_seconds": outcome.usage.cpu_seconds,
        "peak_memory": outcome.usage.peak_memory,
        "sizes": sizes,
        "value": outcome.details.get("value"),
        "error": outcome.details.get("error"),
        **after,
    }
    return head, bytes(body)
