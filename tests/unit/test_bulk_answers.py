"""What a hostile guest may tell of archives, searches and watched directories: nothing that is believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from server.bulk_answers import changes_of, found_of, packed_of, unpacked_of
from server.errors import GuestUnavailable

ROW = ["/workspace/a", 1, 1, "text", [], []]
SEARCHED = {"searched": 1, "skipped": 0, "truncated": False}
UNPACKED = {"files": 1, "directories": 0, "bytes": 3, "skipped": [["../x", "outside"]], "skipped_count": 1}
PACKED = {"path": "/workspace", "entries": 1, "bytes": 2, "skipped": 0}


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def changed(row: list[Any], place: int, value: Any) -> list[Any]:
    return [*row[:place], value, *row[place + 1 :]]


def test_what_makes_sense_is_read() -> None:
    found = found_of(lines(ROW, changed(ROW, 0, "\xff")), SEARCHED, 2)
    assert [match.path for match in found.matches] == [b"/workspace/a", b"\xff"]
    assert found_of(b"", SEARCHED, 2).matches == []
    assert unpacked_of(b"/workspace", UNPACKED).skipped == [(b"../x", "outside")]
    assert changes_of(b'[["moved", "/b", "/a", true]]')[0].old == b"/a"
    assert packed_of(PACKED).path == b"/workspace"


@pytest.mark.parametrize(
    "rows",
    [
        lines(ROW, ROW, ROW),
        lines(ROW)[:-1],
        lines(changed(ROW, 0, "\u0100")),
        lines(changed(ROW, 1, 0)),
        lines(changed(ROW, 1, True)),
        lines(changed(ROW, 2, 1e300)),
        lines(changed(ROW, 3, "x" * 600)),
        lines(changed(ROW, 4, ["x"] * 21)),
        lines(changed(ROW, 5, "text")),
        lines(ROW[:5]),
        lines({}),
        lines("row"),
        b"[" * 100_000 + b"\n",
        b" " * (300 << 10) + b"[]\n",
        b"\xff\n",
        b"not json\n",
    ],
)
def test_rows_that_make_none_are_refused(rows: bytes) -> None:
    with pytest.raises(GuestUnavailable):
        found_of(rows, SEARCHED, 2)


@pytest.mark.parametrize(
    "read",
    [
        lambda: changes_of(b'[["exploded", "/b", null, false]]'),
        lambda: changes_of(b'[["created", 7, null, false]]'),
        lambda: changes_of(b'{"created": 1}'),
        lambda: changes_of(b"[" * 100_000),
        lambda: unpacked_of(b"/", {**UNPACKED, "files": -1}),
        lambda: unpacked_of(b"/", {**UNPACKED, "skipped": [["x", "<script>"]]}),
        lambda: unpacked_of(b"/", {**UNPACKED, "skipped": 3}),
        lambda: unpacked_of(b"/", {}),
        lambda: packed_of({**PACKED, "entries": "1"}),
        lambda: packed_of({**PACKED, "path": None}),
        lambda: found_of(b"", {}, 2),
    ],
)
def test_facts_that_make_no_sense_are_refused(read: Callable[[], object]) -> None:
    with pytest.raises(GuestUnavailable):
        read()
