"""Listing: sorted, in pages, with patterns, and no directory is too large or too hostile for it."""

from __future__ import annotations

import json
import os
import statistics
import time

import pytest
from guest_files import Files, refused

from server import file_errors as errors
from server.api.file_names import entry_as_json
from server.errors import Invalid
from server.guest.globs import BadPattern, Glob
from server.guest_files_client import Listing

_MANY = """import os, sys
for n in range(100000):
    os.close(os.open('f%05d' % n, os.O_CREAT | os.O_WRONLY))
"""


def fill(files: Files) -> None:
    made = "a/1 a/b/2.py a/b/c/3.py a-b/4 src/x/5.py 6.py .h/7.py a0"
    files.guest.run(f"mkdir -p a/b/c a-b src/x .h; touch {made}; ln -s a la")


ALL = ["6.py", "a", "a-b", "a0", "la", "src", ".h"]


def test_a_directory_is_listed_sorted_and_no_deeper_than_asked(files: Files) -> None:
    fill(files)
    assert files.names() == sorted(ALL)
    assert files.names("a") == ["1", "b"]
    deep = files.names(depth=64)
    assert deep == sorted(deep) and len(deep) == 16 and "a/b/c/3.py" in deep and "la/1" not in deep
    assert files.names(depth=2) == [name for name in deep if name.count("/") < 2]


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_pages_of_any_size_give_the_same(files: Files, limit: int) -> None:
    fill(files)
    for wish in ({"depth": 1}, {"depth": 9}, {"depth": 9, "glob": "**/*.py"}):
        assert files.names(limit=limit, **wish) == files.names(**wish)


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("*.py", ["6.py"]),
        ("**/*.py", [".h/7.py", "6.py", "a/b/2.py", "a/b/c/3.py", "src/x/5.py"]),
        ("a/**", ["a", "a/1", "a/b", "a/b/2.py", "a/b/c", "a/b/c/3.py"]),
        ("a/*/*", ["a/b/2.py", "a/b/c"]),
        ("**/b/**/*.py", ["a/b/2.py", "a/b/c/3.py"]),
        ("?0", ["a0"]),
        ("[!a6s.]*", ["la"]),
        ("nothing/*", []),
    ],
)
def test_a_glob_chooses_by_the_path_below_what_is_listed(files: Files, glob: str, found: list[str]) -> None:
    fill(files)
    assert files.names(depth=64, glob=glob) == found


def test_a_pattern_made_to_take_for_ever_does_not() -> None:
    began = time.monotonic()
    assert not Glob("*a" * 500 + "b").matches("a" * 255)
    assert not Glob("/".join(["**", "*a*"] * 100)).matches("/".join(["b"] * 500))
    assert time.monotonic() - began < 1
    with pytest.raises(BadPattern):
        Glob("x" * 2000)
    assert Glob("[*]?[]]").matches("*x]") and Glob("[ab").matches("[ab") and Glob("é?").matches("éü")


def test_any_number_of_directories_said_often_is_said_once() -> None:
    glob = Glob("**/" * 340 + "x")
    began, state = time.monotonic(), glob.start
    for n in range(5000):
        state = glob.step(state, f"name{n}")
    assert time.monotonic() - began < 0.5
    assert not glob.accepts(state) and glob.accepts(glob.step(state, "x")) and glob.matches("x")
    assert Glob("a/**/**/./**/b").matches("a/b") and Glob("**/**").matches("a/b/c")
    assert not Glob("a/**/**/b").matches("a/c") and Glob("**/a/**/**").matches("x/a")


def test_a_pattern_that_cannot_be_understood_is_told_by_its_name(files: Files) -> None:
    assert refused(Invalid, lambda: files.names(glob="x" * 1025)).extras["field"] == "glob"


def test_a_hundred_thousand_names_take_less_than_two_seconds_a_page(files: Files) -> None:
    files.guest.run(["python3", "-c", _MANY], timeout=60)
    names: list[bytes] = []
    took: list[float] = []
    at: bytes | None = b""
    while at is not None:
        began = time.monotonic()
        page = files.page(at=at, limit=1000 if len(took) < 3 else 5000)
        took.append(time.monotonic() - began)
        names += [entry.path for entry in page.entries]
        at = page.following
    assert len(names) == 100_000 and names == sorted(set(names))
    assert statistics.median(took) < 2, took


def test_what_goes_away_or_may_not_be_read_is_passed_over(files: Files) -> None:
    files.guest.run("mkdir -p d/e locked/x; touch d/e/f locked/x/y; chmod 0 locked")
    assert files.names(depth=9) == ["d", "d/e", "d/e/f", "locked"]
    page = files.page(depth=9, limit=2)
    files.delete("d", recursive=True)
    assert page.following is not None
    assert [os.path.basename(entry.path) for entry in files.page(depth=9, at=page.following).entries] == [
        b"locked"
    ]
    refused(errors.PermissionDenied, lambda: files.names("locked"))


def test_names_and_links_made_to_fill_an_answer_come_in_more_pages(files: Files) -> None:
    """Each byte of a name takes six where it is written down; a link's text may be longer than any name."""
    make = "import os\nfor n in range(3000):\n    os.symlink('\x01' * 4000, '%04d' % n + '\x02' * 250)"
    files.guest.run(["python3", "-c", make], timeout=60)
    assert len(files.names(limit=5000)) == 3000
    unread = files.client.list(files.guest.sandbox, Listing(b".", 1, "", b"", 5000))
    page = unread.read()
    assert unread.size > 500_000, "what waits for its turn is a text of a known length"
    assert len(json.dumps([entry_as_json(entry) for entry in page.entries])) < 1.1 * (1 << 20)
    assert len(page.entries) > 20


def test_what_is_no_directory_has_nothing_to_list(files: Files) -> None:
    files.guest.run("touch f; ln -s f lf; mkdir d; touch d/x; ln -s d ld; mkfifo p")
    for path in ("f", "lf", "p", "f/x"):
        refused(errors.NotADirectory, lambda path=path: files.names(path))
    refused(errors.NotFound, lambda: files.names("none"))
    assert files.names("ld") == ["x"]


def test_a_cursor_of_the_callers_own_making_does_no_harm(files: Files) -> None:
    fill(files)
    for at in (b"../../etc", b"/", b"a/" * 2000, b"\xff\xfe", b"zzz"):
        page = files.page(depth=9, at=at)
        assert all(entry.path.startswith(os.fsencode(files.home)) for entry in page.entries)
