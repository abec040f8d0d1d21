"""History that is shown again asks a terminal nothing, and keeps its length."""

from __future__ import annotations

import pytest

from server.api.replay import without_queries

QUERIES = [
    b"\x1b[6n",
    b"\x1b[?6n",
    b"\x1b[c",
    b"\x1b[>c",
    b"\x1b[0c",
    b"\x1b[?2026$p",
    b"\x1b[>0q",
    b"\x1b[18t",
    b"\x1b]10;?\x07",
    b"\x1b]11;?\x1b\\",
    b"\x1b]4;1;?\x07",
    b"\x1bP+q544e\x1b\\",
    b"\x1bP$qm\x1b\\",
    b"\x05",
]
HARMLESS = [
    b"\x1b[2J\x1b[1;31mred\x1b[0m",
    b"\x1b]0;a title?\x07",
    b"\x1b[?1049h\x1b[?25l",
    b"plain text c n t ?\r\n",
    "é☃".encode(),
]


@pytest.mark.parametrize("query", QUERIES)
def test_queries_are_silenced(query: bytes) -> None:
    assert without_queries(b"before" + query + b"after") == b"before" + bytes(len(query)) + b"after"


@pytest.mark.parametrize("shown", HARMLESS)
def test_everything_else_stays(shown: bytes) -> None:
    assert without_queries(shown) == shown
