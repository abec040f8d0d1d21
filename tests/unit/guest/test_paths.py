"""Paths that callers send: where they may lead, and what becomes of the others."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from guest_process import public_directory

from server.guest.paths import Roots, opened, spotted
from server.guest.refused import Refused


@pytest.fixture
def ground() -> Iterator[Path]:
    place = public_directory("paths-")
    for name in ("home/d/e", "tmp", "outside"):
        (place / name).mkdir(parents=True)
    (place / "home/d/file").write_text("here")
    (place / "outside/secret").write_text("there")
    yield place
    subprocess.run(["rm", "-rf", str(place)], check=True, timeout=10)


def roots(ground: Path) -> Roots:
    return Roots(os.fsencode(ground / "home"), (os.fsencode(ground / "tmp"),))


def arrives(ground: Path, path: str | bytes, follow: bool = True) -> str:
    with opened(roots(ground), os.fsencode(path), follow) as place:
        return os.fsdecode(place.path).removeprefix(f"{ground}/")


def would_write(ground: Path, path: str, follow: bool = True) -> str:
    with spotted(roots(ground), os.fsencode(path), follow) as spot:
        return os.fsdecode(spot.path).removeprefix(f"{ground}/")


def test_relative_paths_begin_at_home_and_absolute_ones_in_any_root(ground: Path) -> None:
    assert arrives(ground, ".") == "home"
    assert arrives(ground, "d/../d/./file") == "home/d/file"
    assert arrives(ground, f"{ground}/home/d") == "home/d"
    assert arrives(ground, f"{ground}/tmp") == "tmp"


@pytest.mark.parametrize(
    "path",
    [
        "", "..", "../outside/secret", "d/../../outside", "/etc/passwd", "/", "//etc", "/proc/self/environ",
        "a\0b", "x" * 4097, "d/" * 2049,
    ],
)  # fmt: skip
def test_paths_that_leave_are_refused_whether_or_not_anything_is_there(ground: Path, path: str) -> None:
    for reach in (arrives, would_write):
        with pytest.raises(Refused, match="invalid_path"):
            reach(ground, path)


def test_a_sibling_that_only_begins_with_a_roots_name_is_outside(ground: Path) -> None:
    (ground / "home2").mkdir()
    with pytest.raises(Refused, match="invalid_path"):
        arrives(ground, f"{ground}/home2")


def test_links_are_followed_as_long_as_they_stay_inside(ground: Path) -> None:
    (ground / "home/in").symlink_to("d")
    (ground / "home/across").symlink_to(ground / "tmp")
    assert arrives(ground, "in/file") == "home/d/file"
    assert arrives(ground, "in/e/../file") == "home/d/file"
    assert arrives(ground, "across") == "tmp"
    assert would_write(ground, "across/new") == "tmp/new"


@pytest.mark.parametrize(
    "target",
    ["../outside/secret", "/etc/passwd", "/proc/self/environ", "/proc/self/mem", "/proc/1/mem", "/", "/proc"],
)
def test_links_that_lead_outside_are_refused(ground: Path, target: str) -> None:
    (ground / "home/out").symlink_to(target)
    for reach in (arrives, would_write):
        with pytest.raises(Refused, match="invalid_path"):
            reach(ground, "out")
    assert arrives(ground, "out", follow=False) == "home/out"
    assert would_write(ground, "out", follow=False) == "home/out"


def test_a_link_to_a_directory_outside_leads_nowhere_either(ground: Path) -> None:
    (ground / "home/out").symlink_to(ground / "outside")
    for reach in (arrives, would_write):
        with pytest.raises(Refused, match="invalid_path"):
            reach(ground, "out/secret")


def test_the_guests_own_descriptors_cannot_be_reached_through_proc(ground: Path) -> None:
    mine = os.open(ground / "outside/secret", os.O_RDONLY)
    try:
        (ground / "home/fd").symlink_to(f"/proc/self/fd/{mine}")
        with pytest.raises(Refused, match="invalid_path"):
            arrives(ground, "fd")
    finally:
        os.close(mine)


def test_a_loop_of_links_ends(ground: Path) -> None:
    (ground / "home/a").symlink_to("b")
    (ground / "home/b").symlink_to("a")
    for reach in (arrives, would_write):
        with pytest.raises(OSError, match="symbolic links"):
            reach(ground, "a")


def test_writing_through_a_link_means_its_target_also_when_that_is_not_there_yet(ground: Path) -> None:
    (ground / "home/l").symlink_to("d/new")
    (ground / "home/ll").symlink_to("l")
    assert would_write(ground, "ll") == "home/d/new"
    assert would_write(ground, "ll", follow=False) == "home/ll"


def test_the_roots_themselves_are_no_places_to_write_or_remove(ground: Path) -> None:
    (ground / "home/self").symlink_to(".")
    for path in (".", "./", "d/..", str(ground / "tmp"), "self/.", "d/e/../.."):
        with pytest.raises(Refused, match="invalid_path"):
            would_write(ground, path)
    assert would_write(ground, "self", follow=False) == "home/self"
    assert would_write(ground, "d/e/.", follow=False) == "home/d/e"


def test_names_are_bytes(ground: Path) -> None:
    name = b"odd \xff\n\x1b[2J"
    with open(os.fsencode(ground / "home") + b"/" + name, "wb"):
        pass
    with opened(roots(ground), name) as place:
        assert place.path.endswith(name)
