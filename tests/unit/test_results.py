"""Bytes as callers see them: text where it is text, base64 beside it where it is not, cuts told."""

from __future__ import annotations

import base64
import json
import random
from dataclasses import replace

import pytest

from server.guest_answers import Answer, Artifact, Execution, Stream, Told
from server.results import PIECE, as_json, in_pieces, told_as_json, told_in_pieces, weight

NOTHING = Stream(b"", b"", 0)
ANSWER = Answer(
    exit_code=0,
    signal=None,
    timed_out=False,
    cancelled=False,
    oom_killed=False,
    disk_full=False,
    restarted=False,
    cwd="/",
    seconds=0.0123456,
    cpu_seconds=0.25,
    peak_memory=4096,
    stdout=NOTHING,
    stderr=NOTHING,
    output=NOTHING,
    value=None,
    error=None,
    artifacts=[],
    artifacts_truncated=False,
)


def shown(stream: Stream) -> dict[str, object]:
    return as_json(replace(ANSWER, stdout=stream, output=stream), "s", "e")


def test_everything_is_told() -> None:
    assert as_json(ANSWER, "session", "execution") == {
        "execution_id": "execution",
        "session_id": "session",
        "status": "ended",
        "exit_code": 0,
        "signal": None,
        "timed_out": False,
        "cancelled": False,
        "oom_killed": False,
        "disk_full": False,
        "truncated": False,
        "duration_ms": 12.346,
        "cpu_seconds": 0.25,
        "peak_memory": 4096,
        "cwd": "/",
        "shell_restarted": False,
        "stdout_bytes": 0,
        "stderr_bytes": 0,
        "value": None,
        "error": None,
        "artifacts": [],
        "stdout": "",
        "stderr": "",
        "output": "",
    }


@pytest.mark.parametrize(
    ("path", "mime", "query"),
    [
        (b"artifacts/plot.png", "image/png", "artifacts/plot.png"),
        (b"artifacts/a b&c=d#e%?.tar.gz", "application/gzip", "artifacts/a%20b%26c%3Dd%23e%25%3F.tar.gz"),
        (b"artifacts/data:text/html,x.txt", "text/plain", "artifacts/data%3Atext/html%2Cx.txt"),
        (b"artifacts/\xff\n.md", "text/markdown", "artifacts/%FF%0A.md"),
        ("artifacts/\u2603".encode(), "application/octet-stream", "artifacts/%E2%98%83"),
    ],
)
def test_an_artifact_says_where_and_what_it_is(path: bytes, mime: str, query: str) -> None:
    answer = replace(ANSWER, artifacts=[Artifact(path, 5, None)], artifacts_truncated=True)
    result = as_json(answer, "s", "e")
    told = result["artifacts"][0]
    assert (told["mime"], told["url"]) == (mime, f"/v1/sessions/s/files/content?path={query}")
    assert base64.b64decode(told.get("path_base64", base64.b64encode(told["path"].encode()))) == path
    assert result["artifacts_truncated"] is True


def test_text_that_is_whole_is_just_text() -> None:
    result = shown(Stream("é☃".encode(), "😀".encode(), 9))
    assert (result["stdout"], result["truncated"], "stdout_base64" in result) == ("é☃😀", False, False)


def test_a_character_across_the_seam_of_an_uncut_output_is_whole() -> None:
    raw = "☃".encode()
    assert shown(Stream(raw[:1], raw[1:], 3))["stdout"] == "☃"


def test_bytes_that_are_not_text_come_as_base64_beside_a_lossy_text() -> None:
    result = shown(Stream(b"a\xff\x00", b"b", 4))
    assert result["stdout"] == "a�\x00b"
    assert result["stdout_base64"] == base64.b64encode(b"a\xff\x00b").decode()
    assert "stderr_base64" not in result


def test_a_cut_tells_how_much_is_missing_and_the_true_size() -> None:
    result = shown(Stream(b"head", b"tail", 1000))
    assert result["stdout"] == "head\n... 992 bytes omitted ...\ntail"
    assert (result["truncated"], result["stdout_bytes"]) == (True, 1000)


@pytest.mark.parametrize("char", ["é", "☃", "😀"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_cut_through_a_character_leaves_no_rubbish(char: str, at: int) -> None:
    raw = char.encode()
    if at >= len(raw):
        return
    result = shown(Stream(b"head" + raw[:at], raw[at:] + b"tail", 1000))
    text = str(result["stdout"])
    assert text.startswith("head\n...") and text.endswith("...\ntail")
    assert "�" not in text
    assert "stdout_base64" not in result


@pytest.mark.parametrize("char", ["é", "☃", "😀"])
def test_whole_characters_at_the_cut_are_kept(char: str) -> None:
    text = str(shown(Stream(f"head{char}".encode(), f"{char}tail".encode(), 1000))["stdout"])
    assert text.startswith(f"head{char}\n") and text.endswith(f"\n{char}tail")


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (b"head", b"\x80" * 50 + b"tail"),
        (b"head\xff", b"tail"),
        (b"h\xffead", b"tail"),
        (b"head\x80\x80\x80\x80", b""),
    ],
)
def test_bytes_that_are_not_text_survive_a_cut_too(first: bytes, last: bytes) -> None:
    assert shown(Stream(first, last, 1000))["stdout_base64"] == base64.b64encode(first + last).decode()


def _random(size: int) -> bytes:
    return random.Random(size).randbytes(size)


LARGE = {
    "ascii": b'"\\x\n' * (PIECE // 2),
    "characters of several bytes": "aé☃😀".encode() * (PIECE // 3),
    "noise": _random(3 * PIECE + 1),
    "never text": b"\xff" * (2 * PIECE),
    "text with one bad byte at the end": b"x" * (2 * PIECE) + b"\xe2",
    "text with a bad byte at the seam": b"x" * (PIECE - 1) + b"\xe2" + b"x" * PIECE,
    "nothing": b"",
}


@pytest.mark.parametrize("last", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("first", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("omitted", [0, 1000])
def test_in_pieces_it_is_the_same_result(first: bytes, last: bytes, omitted: int) -> None:
    stream = Stream(first, last, len(first) + len(last) + omitted)
    answer = replace(ANSWER, stdout=stream, stderr=Stream(last, b"", len(last)), value="\u2028☃")
    whole = as_json(answer, "s", "e")
    assert json.loads("".join(in_pieces(answer, "s", "e"))) == whole
    assert weight(answer) >= len(first) + 2 * len(last)
    execution = Execution("e", "ended", "x", "bash", None, None, 0, 0.0, 1.0, 1, 2, 0.1, 3, 4, [(1, 2)])
    told = Told(execution, answer, None, new=False)
    assert json.loads("".join(told_in_pieces(told, answer, "s"))) == json.loads(
        json.dumps(told_as_json(told, "s"))
    )


def test_no_piece_is_large() -> None:
    """A worker writes one, and then others have their turn."""
    noise = _random(1 << 20)
    stream = Stream(noise, b"", len(noise))
    sizes = [len(p) for p in in_pieces(replace(ANSWER, stdout=stream, stderr=stream), "s", "e")]
    assert max(sizes) <= 6 * PIECE and sum(sizes) > 4 << 20
