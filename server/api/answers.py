"""The shapes of answers, for /openapi.json; a test compares real answers with them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class SessionAnswer(BaseModel):
    session_id: str
    status: Literal["created", "existing"] | None = Field(None, description="Only when it is being created.")
    state: Literal["running"]
    user_id: str | None
    image: str
    memory: int
    cpus: float
    timeout: float
    created_at: str
    last_used_at: str
    expires_at: str
    metadata: dict[str, str]


class SessionList(BaseModel):
    sessions: list[SessionAnswer]
    next_cursor: str | None


class PythonError(BaseModel):
    name: str
    message: str
    traceback: str


class Facts(BaseModel):
    """How an execution ended, without what it printed."""

    execution_id: str
    session_id: str
    status: Literal["ended"]
    exit_code: int
    signal: str | None = Field(description="The signal that ended the command, such as SIGKILL.")
    timed_out: bool
    cancelled: bool = Field(description="It was ended by DELETE, or because its caller went away.")
    oom_killed: bool = Field(
        description="The kernel killed a process of the session for want of memory meanwhile."
    )
    stdout_bytes: int = Field(description="The true size, also when less was kept.")
    stderr_bytes: int
    truncated: bool
    duration_ms: float
    cpu_seconds: float
    peak_memory: int | None = Field(description="Bytes: the largest of its processes.")
    cwd: str
    shell_restarted: bool = Field(
        description="The shell ended with this command: its state is lost, a fresh one follows."
    )
    value: str | None = Field(description="Python: the repr of the last expression.")
    error: PythonError | None = Field(description="Python: the exception, if one was raised.")


class Result(Facts):
    """What a command came to."""

    stdout: str
    stderr: str
    output: str = Field(description="stdout and stderr together, in the order in which they arrived.")
    stdout_base64: str | None = Field(None, description="Only when the bytes are not UTF-8.")
    stderr_base64: str | None = None
    output_base64: str | None = None


class Execution(BaseModel):
    """One run of a command."""

    execution_id: str
    session_id: str
    status: Literal["queued", "running", "ended"]
    command: str = Field(description="Its first 1000 characters.")
    language: str
    shell: str | None
    pty: bool
    exit_code: int | None
    started_at: str
    ended_at: str | None
    stdout_bytes: int
    stderr_bytes: int
    cpu_seconds: float
    peak_memory: int | None
    seq: int = Field(description="How many bytes it has printed so far.")
    missing: list[list[int]] = Field(description="Ranges of these, [from, to), that are no longer kept.")


class ExecutionAnswer(Execution):
    result: Result | None = Field(description="When it has ended, for as long as it is kept.")
    refused: str | None = Field(description="The code of the problem for which it never ran.")


class ExecutionList(BaseModel):
    executions: list[Execution]


class TicketAnswer(BaseModel):
    ticket: str
    expires_at: str
    url: str


class Closed(BaseModel):
    session_id: str
    status: Literal["closed"]


class Problem(BaseModel):
    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool
    request_id: str
    model_config = ConfigDict(extra="allow")
