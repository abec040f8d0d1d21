"""What the web counts of its own work. Every label has few values, and none of them is a client's word.

What counts often is found once and kept: a request costs a lookup in a dict and a few writes to memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from server.counts import Count, Counts, Distribution
from server.guest_answers import Answer

_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_UNMATCHED = "unmatched"
_FAST = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_LONG = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_REQUESTS = ("sandbox_http_requests_total", "Requests that were answered, by route and status.")
_PROBLEMS = ("sandbox_problems_total", "Problems that callers were told, by code.")
_QUOTA = ("sandbox_quota_refusals_total", "Requests refused for a limit of a tenant, user or session.")
_RATE = ("sandbox_rate_limit_refusals_total", "Requests refused for coming too fast.")
_STARTED = ("sandbox_executions_total", "Commands that were started, by how their caller follows them.")
_RESULTS = ("sandbox_execution_results_total", "What commands came to whose callers waited for them.")
_SECONDS = (
    "sandbox_execution_duration_seconds",
    "From a command that was understood to its result, where somebody waited.",
)
_OVERHEAD = ("sandbox_execution_overhead_seconds", "The same without the time that the command itself took.")
_RECEIVED = ("sandbox_received_bytes_total", "Bytes of requests' bodies, and of terminals.")
_SENT = ("sandbox_sent_bytes_total", "Bytes of answers' bodies, and of terminals.")
_RESTARTS = ("sandbox_shell_restarts_total", "Shells that had to be started anew after a command.")
_MODES = ("wait", "background", "stream", "terminal")
# Problems that tell of a limit without naming it.
_LIMITS = {
    "too_many_sessions": "sessions",
    "too_many_executions": "executions",
    "too_many_streams": "streams",
    "too_many_shells": "shells",
    "too_many_snapshots": "snapshots",
    "too_many_uploads": "uploads",
    "tenant_quota": "disk",
}
_RATES = ("rate_create", "rate_execute", "rate_files", "rate_read", "rate_address", "rate_failures")
_MOST_LIMITS = 32
_OUTCOMES = ("ok", "failed", "timed_out", "cancelled", "oom_killed", "disk_full")


class Meters:
    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._requests: dict[tuple[str, str, int], Count] = {}
        self._problems: dict[str, Count] = {}
        self._quotas = {limit: counts.count(*_QUOTA, limit=limit) for limit in _LIMITS.values()}
        self._modes = {mode: counts.count(*_STARTED, mode=mode) for mode in _MODES}
        self._outcomes = {outcome: counts.count(*_RESULTS, outcome=outcome) for outcome in _OUTCOMES}
        self._seconds: Distribution = counts.distribution(*_SECONDS, _LONG)
        self._overhead: Distribution = counts.distribution(*_OVERHEAD, _FAST)
        self._received = counts.count(*_RECEIVED)
        self._sent = counts.count(*_SENT)
        self._restarts = counts.count(*_RESTARTS)
        self._rates = {limit: counts.count(*_RATE, limit=limit) for limit in _RATES}

    def answered(self, route: str, method: str, status: int) -> None:
        """`route` is the route's own text, or nothing where none fits."""
        key = (route, method, status) if route else (route, "", status)
        found = self._requests.get(key)
        if found is None:
            labels = {"route": _plain(route), "method": method if method in _METHODS else "other"}
            labels = labels if route else {"route": _UNMATCHED, "method": "any"}
            found = self._requests[key] = self._counts.count(*_REQUESTS, **labels, status=str(status))
        found.add()

    def moved(self, received: int, sent: int) -> None:
        if received:
            self._received.add(received)
        if sent:
            self._sent.add(sent)

    def metered(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The same chunks, counted as they go."""
        return _Metered(iter(chunks), self._sent)

    def refused(self, code: str, limit: str | None) -> None:
        """A problem that a caller was told; `limit` is the name of what was reached, if it has one."""
        found = self._problems.get(code)
        if found is None:
            found = self._problems[code] = self._counts.count(*_PROBLEMS, code=code)
        found.add()
        limit = limit or _LIMITS.get(code)
        if limit is not None:
            what = (self._rates, _RATE) if code == "rate_limited" else (self._quotas, _QUOTA)
            self._limit(*what, limit).add()

    def _limit(self, known: dict[str, Count], what: tuple[str, str], limit: str) -> Count:
        name = limit if limit in known or len(known) < _MOST_LIMITS else "other"
        if name not in known:
            known[name] = self._counts.count(*what, limit=name)
        return known[name]

    def started(self, mode: str) -> None:
        self._modes[mode].add()

    def executed(self, seconds: float, answer: Answer) -> None:
        """A command whose caller waited for it. What it took is the guest's word, and only that."""
        self._modes["wait"].add()
        self._seconds.note(seconds)
        self._overhead.note(max(0.0, seconds - answer.seconds))
        self._outcomes[_outcome(answer)].add()
        if answer.restarted:
            self._restarts.add()


class _Metered(Iterator[bytes]):
    def __init__(self, chunks: Iterator[bytes], sent: Count) -> None:
        self._chunks = chunks
        self._sent = sent

    def __next__(self) -> bytes:
        chunk = next(self._chunks)
        self._sent.add(len(chunk))
        return chunk

    def close(self) -> None:
        close = getattr(self._chunks, "close", None)
        if close is not None:
            close()


def _plain(route: str) -> str:
    return re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", route)


def _outcome(answer: Answer) -> str:
    if answer.exit_code == 0 and answer.signal is None:
        return "ok"
    flags = ("timed_out", "oom_killed", "cancelled", "disk_full")
    return next((flag for flag in flags if getattr(answer, flag)), "failed")
