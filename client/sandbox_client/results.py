"""What the server answers about sessions and executions.

Each can be read like a mapping too: `result["output"]`, `dict(result)`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from .errors import CommandFailed
from .file_infos import Artifact, artifact
from .records import Record, known_fields, read_times

_SUMMARY_LIMIT = 500


@dataclass(frozen=True)
class PythonError(Record):
    """The exception that ended a piece of Python."""

    name: str = ""
    message: str = ""
    traceback: str = field(default="", repr=False)


@dataclass(frozen=True)
class ExecutionResult(Record):
    """What a command gave. `output` is stdout and stderr together, in the order they came."""

    exit_code: int
    output: str = ""
    stdout: str = field(default="", repr=False)
    stderr: str = field(default="", repr=False)
    value: str | None = None
    error: PythonError | None = None
    signal: str | None = None
    timed_out: bool = False
    oom_killed: bool = False
    truncated: bool = False
    shell_restarted: bool = False
    cwd: str | None = None
    duration_ms: float = 0
    stdout_bytes: int = field(default=0, repr=False)
    stderr_bytes: int = field(default=0, repr=False)
    execution_id: str = field(default="", repr=False)
    session_id: str = field(default="", repr=False)
    stdout_base64: str | None = field(default=None, repr=False)
    stderr_base64: str | None = field(default=None, repr=False)
    output_base64: str | None = field(default=None, repr=False)
    cancelled: bool = False
    cpu_seconds: float = field(default=0, repr=False)
    peak_memory: int | None = field(default=None, repr=False)
    disk_full: bool = False
    artifacts: tuple[Artifact, ...] = ()
    artifacts_truncated: bool = field(default=False, repr=False)

    @property
    def ok(self) -> bool:
        """It ended by itself, with exit code 0."""
        return self.exit_code == 0 and self.signal is None and not (self.timed_out or self.cancelled)

    @property
    def stdout_raw(self) -> bytes:
        """The very bytes, also when they are not UTF-8."""
        return _raw(self.stdout, self.stdout_base64)

    @property
    def stderr_raw(self) -> bytes:
        """The very bytes, also when they are not UTF-8."""
        return _raw(self.stderr, self.stderr_base64)

    @property
    def output_raw(self) -> bytes:
        """The very bytes, also when they are not UTF-8."""
        return _raw(self.output, self.output_base64)

    @property
    def summary(self) -> str:
        """How it ended, and the end of what it said, in a few lines."""
        last_words = (self.stderr.strip() or self.output.strip())[-_SUMMARY_LIMIT:]
        return f"{self._ending}: {last_words}" if last_words else self._ending

    @property
    def _ending(self) -> str:
        if self.timed_out:
            return f"timed out after {self.duration_ms / 1000:.1f} s"
        if self.oom_killed:
            return "killed: out of memory"
        if self.cancelled:
            return "cancelled"
        if self.signal is not None:
            return f"killed by {self.signal}"
        return f"exit code {self.exit_code}{', the disk is full' if self.disk_full else ''}"

    def check(self) -> ExecutionResult:
        """This result, or CommandFailed when it is not `ok`."""
        if not self.ok:
            raise CommandFailed(self)
        return self


@dataclass(frozen=True)
class SessionInfo(Record):
    """A session as the server sees it. `memory` and `disk` in bytes, `timeout` in seconds after the last use.

    `workspace` is the name of the one that outlives the session; `disk_used` is told by `info()` only.
    `state` is "running", "paused" or "cold"; the next call wakes it.
    """

    session_id: str
    status: str | None = None
    state: str | None = None
    user_id: str | None = None
    image: str | None = None
    memory: int | None = None
    cpus: float | None = None
    timeout: float | None = None
    created_at: datetime | None = None
    last_used_at: datetime | None = None
    expires_at: datetime | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    workspace: str | None = None
    disk: int | None = None
    disk_used: int | None = None
    datasets: tuple[str, ...] = ()
    checkpoint: bool = False
    state_reason: str | None = None
    state_since: datetime | None = None
    ephemeral: bool = False


@dataclass(frozen=True)
class ExecutionInfo(Record):
    """An execution as the server sees it. `seq` is how many bytes it has written so far.

    `missing` are the ranges of bytes, each `(from, to)`, that the log no longer holds. `result` is there once
    it has ended, for as long as the server keeps it; lists come without.
    """

    execution_id: str
    session_id: str = ""
    status: str | None = None
    command: str = ""
    language: str | None = None
    shell: str | None = None
    exit_code: int | None = None
    pty: bool = False
    started_at: datetime | None = None
    ended_at: datetime | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    cpu_seconds: float = 0
    peak_memory: int | None = None
    seq: int = 0
    missing: tuple[tuple[int, int], ...] = ()
    result: ExecutionResult | None = None

    @property
    def ended(self) -> bool:
        """It is over."""
        return self.status == "ended"


@dataclass(frozen=True)
class Undone(Record):
    """Which execution was undone, and from which snapshot the files are now."""

    undone: str | None = None
    snapshot_id: str | None = None
    session: SessionInfo | None = field(default=None, repr=False)


def execution_result(answer: Mapping[str, Any]) -> ExecutionResult:
    """Read the answer to an execute."""
    known = known_fields(ExecutionResult, answer, required="exit_code")
    if isinstance(known.get("error"), Mapping):
        known["error"] = PythonError(**known_fields(PythonError, known["error"]))
    known["artifacts"] = tuple(map(artifact, known.get("artifacts", ())))
    return ExecutionResult(**known)


def execution_info(answer: Mapping[str, Any]) -> ExecutionInfo:
    """Read an execution."""
    known = known_fields(ExecutionInfo, answer, required="execution_id")
    read_times(known, "started_at", "ended_at")
    known["missing"] = tuple((start, end) for start, end in known.get("missing", ()))
    if "result" in known:
        known["result"] = execution_result(known["result"])
    return ExecutionInfo(**known)


def session_info(answer: Mapping[str, Any]) -> SessionInfo:
    """Read the answer to a create, get, extend, or one item of a list."""
    known = known_fields(SessionInfo, answer, required="session_id")
    read_times(known, "created_at", "last_used_at", "expires_at", "state_since")
    known["datasets"] = tuple(known.get("datasets", ()))
    return SessionInfo(**known)


def undone(answer: Mapping[str, Any]) -> Undone:
    """Read the answer to an undo."""
    known = known_fields(Undone, answer)
    if "session" in known:
        known["session"] = session_info(known["session"])
    return Undone(**known)


def _raw(text: str, encoded: str | None) -> bytes:
    return text.encode() if encoded is None else base64.b64decode(encoded)
