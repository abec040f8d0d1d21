"""Searching files: what is found, what is passed over, and what can never take for ever."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from scripts import Done, script

ASKED: dict[str, Any] = {
    "regex": False,
    "ignore_case": False,
    "glob": None,
    "context": 0,
    "limit": 200,
    "seconds": 10,
}


def search(home: Path, pattern: str, **asked: Any) -> Done:
    return script("search", home, pattern=pattern, **{**ASKED, **asked})


def rows_of(done: Done) -> list[Any]:
    return [json.loads(line) for line in done.written.splitlines()]


def found(done: Done, home: Path) -> list[tuple[str, int, int]]:
    rows = rows_of(done)
    return [
        (path.encode("latin-1").decode()[len(str(home)) + 1 :], line, column)
        for path, line, column, *_ in rows
    ]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "a.py": b"import os\nprint('needle')\n",
        "b/c.txt": b"Needle\r\nno\nneedle needle\n",
        "b/d.bin": b"needle\0needle",
        ".git/config": b"needle",
        "b/latin": b"\xffneedle",
        "\u00fcml.txt": b"\xc3\xa4\xc3\xb6 needle",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link.py").symlink_to("a.py")
    (tmp_path / "loop").symlink_to(".")
    return tmp_path


def test_a_text_is_found_where_it_is_and_in_order(tree: Path) -> None:
    done = search(tree, "needle")
    places = [("a.py", 2, 8), ("b/c.txt", 3, 1), ("b/latin", 1, 2), ("\u00fcml.txt", 1, 4)]
    assert found(done, tree) == places
    assert done.last == {"ok": True, "searched": 4, "skipped": 2, "truncated": False}


@pytest.mark.parametrize(
    ("asked", "places"),
    [
        (
            {"pattern": "NEEDLE", "ignore_case": True, "path": "b"},
            [("b/c.txt", 1, 1), ("b/c.txt", 3, 1), ("b/latin", 1, 2)],
        ),
        ({"pattern": r"^n\w+\s", "regex": True}, [("b/c.txt", 3, 1)]),
        ({"pattern": "needle", "glob": "*.py"}, [("a.py", 2, 8)]),
        ({"pattern": "needle", "glob": "c.*"}, [("b/c.txt", 3, 1)]),
        ({"pattern": "needle", "glob": "b/*.txt"}, [("b/c.txt", 3, 1)]),
        ({"pattern": "needle", "path": ".git"}, [(".git/config", 1, 1)]),
        ({"pattern": "needle", "path": "a.py"}, [("a.py", 2, 8)]),
        ({"pattern": "$", "regex": True, "path": "a.py"}, [("a.py", 1, 10), ("a.py", 2, 16)]),
        ({"pattern": "a.b"}, []),
    ],
)
def test_what_is_asked_is_what_is_searched(tree: Path, asked: dict[str, Any], places: list[Any]) -> None:
    assert found(search(tree, **asked), tree) == places


def test_lines_around_are_told_and_long_ones_are_cut_around_what_was_found(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("one\ntwo\nneedle\nfour\n")
    (tmp_path / "long").write_text("x" * 100_000 + "needle" + "y" * 100_000)
    rows = rows_of(search(tmp_path, "needle", context=3))
    assert [row[3:] for row in rows[:1]] == [["needle", ["one", "two"], ["four"]]]
    _, line, column, text, *_ = rows[1]
    assert (line, column, len(text), text[100:106]) == (1, 100_001, 500, "needle")


def test_no_more_is_told_than_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("needle\n" * 100)
    done = search(tmp_path, "needle", limit=100)
    assert (len(rows_of(done)), done.last["truncated"]) == (100, False)
    done = search(tmp_path, "needle", limit=99)
    assert (len(rows_of(done)), done.last["truncated"]) == (99, True)
    (tmp_path / "wide").write_text(("w" * 500 + "\n") * 15_000)
    done = search(tmp_path, "w", limit=10_000, context=10)
    assert done.last["truncated"] and len(done.written) < 4 << 20


def test_a_pattern_that_would_take_for_ever_is_given_up_with_what_was_found(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("aaaa\n" + "a" * 200 + "b\n")
    began = time.monotonic()
    done = search(tmp_path, "(a|aa|a*)*$", regex=True, seconds=0.5)
    assert time.monotonic() - began < 3
    assert (found(done, tmp_path), done.last["truncated"]) == ([("f", 1, 1)], True)


def test_a_pattern_or_a_file_that_would_take_all_memory_is_given_up_with_what_was_found(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").write_text("aaaa\n")
    (tmp_path / "b").write_bytes(b"a" * (8 << 20))
    (tmp_path / "c").write_bytes(b"\n" * (8 << 20))
    done = search(tmp_path, "(a|aa)+$", regex=True)
    assert done.last["ok"] and done.last["truncated"]
    assert ("a", 1, 1) in found(done, tmp_path)


@pytest.mark.parametrize(
    "pattern", ["(", "[z-a]", "a{2,1}", "(?P<n>x)(?P<n>y)", "(" * 3000 + ")" * 3000, "a{99999999999}"]
)
def test_a_pattern_that_is_none_is_refused(tmp_path: Path, pattern: str) -> None:
    said = search(tmp_path, pattern, regex=True).said
    assert [one["code"] for one in said] == ["invalid_pattern"]


@pytest.mark.parametrize(
    ("path", "code"), [("nowhere", "not_found"), ("/etc", "invalid_path"), ("f", "not_a_regular_file")]
)
def test_what_is_not_there_or_not_inside_is_not_searched(tmp_path: Path, path: str, code: str) -> None:
    os.mkfifo(tmp_path / "f")
    assert search(tmp_path, "x", path=path).last == {"ok": False, "code": code}
