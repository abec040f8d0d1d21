"""What a session has run, told before its sandbox goes and put back into its next one.

Results of the last executions, and the names of those that callers have a key for: whatever becomes of the
sandbox, a repeated request does not run twice. Logs are not kept.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Iterator

from .executions import Execution, Executions
from .log import Log

_MOST_BYTES = 1 << 20  # of results, as they are written down; the newest are kept
_FACTS = ("name", "fingerprint", "about", "started_at", "ended_at")


def recollections(executions: Executions) -> Iterator[dict[str, Any]]:
    """For `put_back`: all of it, then less and less, for who has not room for that."""
    told = {"results": _results(executions), "names": executions.named(), "series": executions.series()}
    yield told
    yield {**told, "results": []}
    yield {**told, "results": [], "names": {}}


def _results(executions: Executions) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    room = _MOST_BYTES
    for execution in reversed(executions.kept()):
        assert execution.answer is not None
        head, body = execution.answer
        facts = {name: getattr(execution, name) for name in _FACTS}
        packed = base64.b64encode(body).decode()
        told = {**facts, "counts": execution.log.counts, "head": head, "body": packed}
        room -= len(json.dumps(told))
        if room < 0:
            break
        results.append(told)
    return results[::-1]


def put_back(told: dict[str, Any], executions: Executions) -> None:
    """Raises ValueError, TypeError or KeyError where that makes no sense: it has been through other hands."""
    ended = [_execution(one) for one in told["results"]]
    names = {str(name): str(value) for name, value in told["names"].items()}
    executions.recall(ended, names, {str(name): int(value) for name, value in told["series"].items()})


def _execution(told: dict[str, Any]) -> Execution:
    execution = Execution(
        **{name: told[name] for name in _FACTS}, log=Log.lost(list(map(int, told["counts"])))
    )
    execution.answer = (dict(told["head"]), base64.b64decode(told["body"]))
    execution.promised = True
    execution.done.set()
    return execution
