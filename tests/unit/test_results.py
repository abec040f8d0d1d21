"""Bytes as callers see them: text where it is text, base64 beside it where it is not, cuts told."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from server.guest_answers import Answer, Stream
from server.results import as_json

NOTHING = Stream(b"", b"", 0)
ANSWER = Answer(
    exit_code=0,
    signal=None,
    timed_out=False,
    cancelled=False,
    oom_killed=False,
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
        "stdout": "",
        "stderr": "",
        "output": "",
    }


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
