"""An execution's result as callers see it: text beside bytes, truncation told, nothing to be guessed.

A large one is three times a MiB that may become eight of JSON. It is written piece by piece, each when it is
asked for, so that it neither holds up a worker nor lies in its memory as a whole.
"""

from __future__ import annotations

import base64
import codecs
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from server.guest_answers import Answer, Artifact, Execution, Stream, Told
from server.guest_refusals import refusal_of
from server.mimes import mime_of
from server.times import timestamp

PIECE = 48 << 10  # bytes of a stream in a piece; by three, so that their base64 has no end of its own


def as_json(answer: Answer, session_id: str, execution_id: str) -> dict[str, Any]:
    result = facts(answer, session_id, execution_id)
    for name, stream in _streams(answer).items():
        text, lossless = _text(stream)
        result[name] = text
        if not lossless:
            result[f"{name}_base64"] = base64.b64encode(stream.first + stream.last).decode()
    return result


def weight(answer: Answer) -> int:
    """About how many bytes there are to be written. Asked of every result: it costs next to nothing."""
    stdout, stderr, output = answer.stdout, answer.stderr, answer.output
    kept = len(stdout.first) + len(stdout.last) + len(stderr.first) + len(stderr.last)
    kept += len(output.first) + len(output.last)
    if answer.value or answer.error or answer.artifacts:
        kept += len(answer.value or "") + sum(map(len, (answer.error or {}).values()))
        kept += sum(len(artifact.path) for artifact in answer.artifacts)
    return kept


def in_pieces(answer: Answer, session_id: str, execution_id: str) -> Iterator[str]:
    """`as_json`, as the JSON that it becomes."""
    yield _dumped(facts(answer, session_id, execution_id))[:-1]
    for name, stream in _streams(answer).items():
        yield from _stream_in_pieces(name, stream)
    yield "}"


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
        "disk_full": answer.disk_full,
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
        "artifacts": [artifact_as_json(artifact, session_id) for artifact in answer.artifacts],
        **({"artifacts_truncated": True} if answer.artifacts_truncated else {}),
    }


def artifact_as_json(artifact: Artifact, session_id: str) -> dict[str, Any]:
    path, lossless = _decode(artifact.path)
    told = {
        "path": path,
        "size": artifact.size,
        "mime": mime_of(path),
        "sha256": artifact.sha256,
        "url": f"/v1/sessions/{session_id}/files/content?path={quote(artifact.path, safe='/')}",
    }
    return told if lossless else {**told, "path_base64": base64.b64encode(artifact.path).decode()}


def as_text(answer: Answer, session_id: str, execution: str) -> str:
    """The answer of POST /run, as it is sent and kept."""
    return "".join(in_pieces(answer, session_id, execution))


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


def told_in_pieces(told: Told, answer: Answer, session_id: str) -> Iterator[str]:
    """`told_as_json` of one that has an answer, as the JSON that it becomes."""
    fields = told_as_json(replace(told, answer=None), session_id)
    refused = fields.pop("refused")
    del fields["result"]
    yield f'{_dumped(fields)[:-1]},"result":'
    yield from in_pieces(answer, session_id, told.execution.id)
    yield f',"refused":{_dumped(refused)}}}'


def _stream_in_pieces(name: str, stream: Stream) -> Iterator[str]:
    lossless = True
    yield f',"{name}":"'
    for shown in _shown(stream):
        decoder = codecs.getincrementaldecoder("utf-8")("strict")
        for piece, is_last in _cut(shown):
            try:
                text = decoder.decode(piece, is_last)
            except UnicodeDecodeError:
                lossless, decoder.errors = False, "replace"
                text = decoder.decode(piece, is_last)
            yield _dumped(text)[1:-1]
    yield '"'
    if not lossless:
        yield f',"{name}_base64":"'
        for piece, _ in _cut(stream.first + stream.last):
            yield base64.b64encode(piece).decode()
        yield '"'


def _cut(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """In pieces, and whether each is the last."""
    for at in range(0, len(data), PIECE):
        yield data[at : at + PIECE], at + PIECE >= len(data)


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _streams(answer: Answer) -> dict[str, Stream]:
    return {"stdout": answer.stdout, "stderr": answer.stderr, "output": answer.output}


def _omitted(stream: Stream) -> int:
    return max(0, stream.total - len(stream.first) - len(stream.last))


def _text(stream: Stream) -> tuple[str, bool]:
    """The stream as text, and whether that text holds every byte that was kept."""
    if not _omitted(stream):
        return _decode(stream.first + stream.last)
    decoded = [_decode(shown) for shown in _shown(stream)]
    return "".join(text for text, _ in decoded), all(whole for _, whole in decoded)


def _shown(stream: Stream) -> list[bytes]:
    """What its text is made of, each a text of its own."""
    omitted = _omitted(stream)
    if not omitted:
        return [stream.first + stream.last]
    told = f"\n... {omitted} bytes omitted ...\n".encode()
    return [_without_cut_end(stream.first), told, _without_cut_start(stream.last)]


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
