"""The shapes of answers, for /openapi.json; a test compares real answers with them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class PlacedFile(BaseModel):
    file_id: str
    path: str = Field(description="Relative to /workspace.")
    size: int


class SessionAnswer(BaseModel):
    session_id: str
    status: Literal["created", "existing"] | None = Field(None, description="Only when it is being created.")
    state: Literal["running", "paused", "cold"] = Field(
        description="Paused and cold sessions wake when they are used."
    )
    state_reason: Literal["opened", "idle", "asked", "used"] = Field(description="Why it is in this state.")
    state_since: str
    user_id: str | None
    image: str
    memory: int
    cpus: float
    timeout: float
    created_at: str
    last_used_at: str
    expires_at: str
    metadata: dict[str, str]
    workspace: str | None = Field(description="The name of its workspace, if that outlives it.")
    disk: int = Field(description="Bytes that its workspace may hold.")
    disk_used: int | None = Field(None, description="Bytes it holds; told of one session, if it can be told.")
    datasets: list[str]
    checkpoint: bool
    ephemeral: bool = Field(description="It is over with its first command.")
    files: list[PlacedFile] | None = Field(None, description="Only when it is being created with some.")


class SnapshotAnswer(BaseModel):
    snapshot_id: str
    session_id: str
    name: str | None
    kind: Literal["snapshot", "checkpoint"]
    execution_id: str | None = Field(description="A checkpoint's: it was taken before this execution.")
    size: int | None = Field(description="Bytes that the workspace held.")
    created_at: str


class SnapshotList(BaseModel):
    snapshots: list[SnapshotAnswer]


class WorkspaceAnswer(BaseModel):
    name: str
    size: int | None
    created_at: str
    last_used_at: str | None
    session_id: str | None = Field(description="The live session that has it.")


class WorkspaceList(BaseModel):
    workspaces: list[WorkspaceAnswer]
    next_cursor: str | None


class Dataset(BaseModel):
    name: str
    size: int | None


class DatasetList(BaseModel):
    datasets: list[Dataset]


class SessionList(BaseModel):
    sessions: list[SessionAnswer]
    next_cursor: str | None


class Forked(BaseModel):
    sessions: list[SessionAnswer]


class Undone(BaseModel):
    session: SessionAnswer
    undone: str | None
    snapshot_id: str


class PythonError(BaseModel):
    name: str
    message: str
    traceback: str


class Artifact(BaseModel):
    path: str = Field(description="Relative to /workspace.")
    size: int
    mime: str
    sha256: str | None = Field(description="Of files up to 1 MiB.")
    url: str
    path_base64: str | None = Field(None, description="Only when the name is not UTF-8.")


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
    disk_full: bool = Field(description="It failed or complained, and there is no room for files.")
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
    artifacts: list[Artifact] = Field(description="Files in /workspace/artifacts that are new or changed.")
    artifacts_truncated: bool | None = Field(None, description="Only when there are more of them.")


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


class FileEntry(BaseModel):
    """Something in a directory."""

    path: str = Field(description="Absolute. What is not UTF-8 shows as U+FFFD.")
    path_base64: str | None = Field(None, description="Only when the path is not UTF-8: its bytes.")
    name: str
    type: Literal["file", "directory", "symlink", "other"]
    size: int
    mode: str = Field(description="Such as 0644.")
    modified_at: str
    etag: str = Field(description="Changes with every write.")
    target: str | None = Field(None, description="Only of a link: where it leads.")


class FileList(BaseModel):
    path: str
    path_base64: str | None = None
    entries: list[FileEntry]
    next_cursor: str | None = Field(description="A page may be short or empty: go on while this is not null.")


class Edited(BaseModel):
    path: str
    path_base64: str | None = None
    replacements: int
    entry: FileEntry


class SkippedMember(BaseModel):
    path: str
    path_base64: str | None = None
    reason: Literal[
        "outside",
        "link",
        "exists",
        "special",
        "unsupported",
        "invalid_name",
        "permission_denied",
        "gone",
    ]


class Unpacked(BaseModel):
    path: str
    path_base64: str | None = None
    files: int = Field(description="Files and links.")
    directories: int = Field(description="New ones.")
    bytes: int
    skipped: list[SkippedMember] = Field(description="The first of them, 100 at most.")
    skipped_count: int


class Match(BaseModel):
    path: str
    path_base64: str | None = None
    line: int
    column: int
    text: str
    before: list[str]
    after: list[str]


class SearchAnswer(BaseModel):
    matches: list[Match]
    files_searched: int
    files_skipped: int = Field(description="Binary, larger than 8 MiB, or not to be read.")
    truncated: bool = Field(description="There may be more: a limit or the time was reached.")


class FileUrl(BaseModel):
    url: str = Field(description="Good once, without a key.")
    method: Literal["GET", "PUT"]
    expires_at: str


class TicketAnswer(BaseModel):
    ticket: str
    expires_at: str
    url: str


class UploadAnswer(BaseModel):
    file_id: str
    name: str
    size: int
    mime: str
    sha256: str
    created_at: str
    expires_at: str


class Uploaded(BaseModel):
    files: list[UploadAnswer]


class UploadList(Uploaded):
    next_cursor: str | None


class Quota(BaseModel):
    used: float | None = Field(description="None: it cannot be told now.")
    allowed: float | None = Field(description="None: no limit.")


class Rate(BaseModel):
    used: int
    allowed: int
    window: int = Field(description="Seconds.")
    reset: int = Field(description="Seconds until the window ends.")


class UserLimits(BaseModel):
    user_id: str
    limits: dict[str, Quota]


class LimitsAnswer(BaseModel):
    limits: dict[str, Quota]
    rates: dict[str, Rate]
    user: UserLimits | None = Field(None, description="Only when asked for.")
    day_ends_in: int = Field(description="Seconds until what was used today is forgotten.")


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
