"""What guests answer, checked: every word of it is untrusted until it has been read here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from server import errors
from server.guest import protocol

MOST = 1 << 62
_STREAMS = ("stdout", "stderr")
_MOST_ARTIFACTS = 100
_LONGEST_PATH = 4200
_DIGEST = re.compile("[0-9a-f]{64}")
_STATUSES = ("queued", "running", "ended")


@dataclass(frozen=True)
class Stream:
    """What was kept of one stream: its first and last bytes, and how many there were in all."""

    first: bytes
    last: bytes
    total: int


@dataclass(frozen=True)
class Artifact:
    """A file that a command left for its caller; the path is what follows /workspace/, as bytes."""

    path: bytes
    size: int
    sha256: str | None


@dataclass(frozen=True)
class Answer:
    exit_code: int
    signal: str | None
    timed_out: bool
    cancelled: bool
    oom_killed: bool
    disk_full: bool
    restarted: bool
    cwd: str
    seconds: float
    cpu_seconds: float
    peak_memory: int | None
    stdout: Stream
    stderr: Stream
    output: Stream
    value: str | None
    error: dict[str, str] | None
    artifacts: list[Artifact]
    artifacts_truncated: bool
    new: bool = field(default=True, compare=False)  # the very call that was answered began it


@dataclass(frozen=True)
class Execution:
    """What a guest tells of one run of a command."""

    id: str
    status: str
    command: str
    language: str
    shell: str | None
    screen: tuple[int, int] | None
    exit_code: int | None
    started_at: float
    ended_at: float | None
    stdout_bytes: int
    stderr_bytes: int
    cpu_seconds: float
    peak_memory: int | None
    total: int
    missing: list[tuple[int, int]]


@dataclass(frozen=True)
class Told:
    """An execution, and its result when it has ended and the result is kept.

    `refusal` is the guest's word for why it never ran, `new` whether the very call that tells it began it.
    """

    execution: Execution
    answer: Answer | None
    refusal: str | None
    new: bool


@dataclass(frozen=True)
class Batch:
    """What a log holds from the position `begin` on; `ended` when nothing will follow."""

    begin: int
    pieces: list[tuple[str, bytes]]
    ended: bool

    @property
    def end(self) -> int:
        return self.begin + sum(len(data) for _, data in self.pieces)


def answer_of(head: protocol.Head, body: protocol.Body) -> Answer:
    with sense():
        stdout, stderr, both = _streams(head["sizes"], body)
        return Answer(
            exit_code=number(head["exit_code"], 0, 255),
            signal=_text(head["signal"]),
            timed_out=head["timed_out"] is True,
            cancelled=head["cancelled"] is True,
            oom_killed=head["oom_killed"] is True,
            disk_full=head["disk_full"] is True,
            restarted=head["restarted"] is True,
            cwd=_text(head["cwd"]) or "",
            seconds=_seconds(head["seconds"]),
            cpu_seconds=_seconds(head["cpu_seconds"]),
            peak_memory=None if head["peak_memory"] is None else number(head["peak_memory"], 0, MOST),
            stdout=stdout,
            stderr=stderr,
            output=both,
            value=_text(head["value"]),
            error=_error(head["error"]),
            artifacts=_artifacts(head["artifacts"]),
            artifacts_truncated=head["artifacts_truncated"] is True,
            new=head.get("new") is not False,
        )


def told_of(head: protocol.Head, body: protocol.Body) -> Told:
    with sense():
        result = head["result"]
        answer = None if result is None else answer_of(result, body)
        refusal, new = _text(head["refusal"]), head.get("new") is True
        return Told(_execution(head["execution"]), answer, refusal, new)


def list_of(head: protocol.Head, body: protocol.Body) -> list[Execution]:
    with sense():
        return [_execution(facts) for facts in head["executions"]]


def batch_of(head: protocol.Head, body: protocol.Body) -> Batch:
    with sense():
        pieces = []
        at = 0
        for stream, size in head["pieces"]:
            size = number(size, 1, len(body) - at)
            pieces.append((one_of(stream, _STREAMS), bytes(body[at : at + size])))
            at += size
        if at != len(body):
            raise ValueError("sizes and body disagree")
        return Batch(number(head["begin"], 0, MOST), pieces, head["ended"] is True)


@contextmanager
def sense() -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise errors.GuestUnavailable(
            "The sandbox gave an answer that makes no sense. The command may have run."
        ) from exc


def _execution(facts: dict[str, Any]) -> Execution:
    peak, ended = facts["peak_memory"], facts["ended_at"]
    return Execution(
        id=_needed(facts["execution"]),
        status=one_of(facts["status"], _STATUSES),
        command=_needed(facts["command"]),
        language=_needed(facts["language"]),
        shell=_text(facts["shell"]),
        screen=_screen(facts["screen"]),
        exit_code=None if facts["exit_code"] is None else number(facts["exit_code"], 0, 255),
        started_at=_moment(facts["started_at"]),
        ended_at=None if ended is None else _moment(ended),
        stdout_bytes=number(facts["stdout_bytes"], 0, MOST),
        stderr_bytes=number(facts["stderr_bytes"], 0, MOST),
        cpu_seconds=_seconds(facts["cpu_seconds"]),
        peak_memory=None if peak is None else number(peak, 0, MOST),
        total=number(facts["total"], 0, MOST),
        missing=[(number(begin, 0, MOST), number(end, 0, MOST)) for begin, end in facts["missing"]],
    )


def _screen(value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("not a size")
    return number(value[0], 1, MOST), number(value[1], 1, MOST)


def _streams(sizes: dict[str, Any], body: protocol.Body) -> tuple[Stream, Stream, Stream]:
    found: dict[str, Stream] = {}
    at = 0
    for name in ("stdout", "stderr", "both"):
        if name in sizes:
            first, last, total = (number(size, 0, MOST) for size in sizes[name])
            kept = bytes(body[at : at + first + last])
            found[name] = Stream(kept[:first], kept[first:], total)
            at += first + last
    if at != len(body):
        raise ValueError("sizes and body disagree")
    stdout, stderr = found["stdout"], found["stderr"]
    return stdout, stderr, found.get("both") or (stdout if stdout.total else stderr)


def _artifacts(told: object) -> list[Artifact]:
    if not isinstance(told, list) or len(told) > _MOST_ARTIFACTS:
        raise ValueError("not a list of artifacts")
    return [Artifact(_path(one), number(one["size"], 0, MOST), _digest(one["sha256"])) for one in told]


def _path(artifact: dict[str, Any]) -> bytes:
    """It came as a character for each byte. It is shown and made part of a URL, never opened here."""
    path = _needed(artifact["path"]).encode("latin-1")
    parts = path.split(b"/")
    if len(path) > _LONGEST_PATH or b"\0" in path or parts[0] != b"artifacts" or len(parts) < 2:
        raise ValueError("not a path")
    if any(part in (b"", b".", b"..") for part in parts):
        raise ValueError("not a path")
    return path


def _digest(value: object) -> str | None:
    if value is None or (isinstance(value, str) and _DIGEST.fullmatch(value)):
        return value
    raise ValueError("not a digest")


def number(value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError("not a number in range")
    return value


def _seconds(value: object) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1e9:  # type: ignore[operator] # a number, as checked
        raise ValueError("not a duration")
    return float(value)  # type: ignore[arg-type]


def _moment(value: object) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1 << 33:  # type: ignore[operator] # a number, as checked
        raise ValueError("not a time")
    return float(value)  # type: ignore[arg-type]


def one_of(value: object, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise ValueError("not one of the known words")
    return value


def _needed(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise ValueError("not a text")


def _error(value: object) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError("not an error")
    return {name: _text(value[name]) or "" for name in ("name", "message", "traceback")}
