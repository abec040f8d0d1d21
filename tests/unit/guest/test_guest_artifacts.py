"""What a command leaves below `artifacts` is told with its result: all of it, once, and nothing else."""

from __future__ import annotations

import hashlib
import threading
import time

import pytest
from guest_process import GuestProcess

from server.guest_answers import Answer


def paths(answer: Answer) -> list[bytes]:
    return [artifact.path.removeprefix(b"artifacts/") for artifact in answer.artifacts]


def test_a_command_without_artifacts_has_none(guest: GuestProcess) -> None:
    answer = guest.run("echo x > beside; echo x > /tmp/nowhere-$$; rm /tmp/nowhere-$$")
    assert (answer.artifacts, answer.artifacts_truncated) == ([], False)


@pytest.mark.parametrize(
    "options", [{}, {"shell": None}, {"shell": "other"}], ids=["main shell", "a process", "another shell"]
)
def test_what_a_command_wrote_is_told_by_it_and_by_no_later_one(
    guest: GuestProcess, options: dict[str, str | None]
) -> None:
    guest.run("mkdir -p artifacts/deep/er; echo old > artifacts/old")
    answer = guest.run(
        "echo -n one > artifacts/deep/er/one.txt; head -c 2000000 /dev/zero > artifacts/big", **options
    )
    assert [(a.path, a.size, a.sha256) for a in answer.artifacts] == [
        (b"artifacts/big", 2_000_000, None),
        (b"artifacts/deep/er/one.txt", 3, hashlib.sha256(b"one").hexdigest()),
    ]
    assert paths(guest.run("true", **options)) == []


def test_python_tells_its_artifacts_too(guest: GuestProcess) -> None:
    answer = guest.python("import os; os.mkdir('artifacts'); open('artifacts/plot.png', 'w').write('x')")
    assert paths(answer) == [b"plot.png"]
    assert paths(guest.python("1")) == []


def test_commands_in_quick_succession_tell_their_own(guest: GuestProcess) -> None:
    """Files are marked by a clock that ticks every few milliseconds, and commands are faster."""
    guest.run("mkdir artifacts")
    for number in range(30):
        assert paths(guest.run(f"echo {number % 10} > artifacts/same")) == [b"same"]
        assert paths(guest.run(": < artifacts/same")) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("echo more >> artifacts/a", [b"a"]),
        ("touch -d 1990-01-01 artifacts/a", [b"a"]),
        ("mv artifacts/a artifacts/c", [b"c"]),
        ("rm artifacts/a", []),
        ("cat artifacts/a; ls artifacts", []),
        ("mv outside artifacts/inside", [b"inside/x", b"inside/y/z"]),
        ("rm -r artifacts; mv outside artifacts", [b"x", b"y/z"]),
        ("ln -s ../outside artifacts/link; ln -s ../outside/x artifacts/other; mkfifo artifacts/pipe", []),
        ("ln outside/x artifacts/x", [b"x"]),
    ],
)
def test_every_way_to_change_something(guest: GuestProcess, change: str, told: list[bytes]) -> None:
    """With times that their owner set, from elsewhere with their directory, by a second name."""
    guest.run("mkdir -p artifacts outside/y; echo a > artifacts/a; echo b > artifacts/b")
    guest.run("echo x > outside/x; echo z > outside/y/z")
    time.sleep(0.02)  # what is moved must have been written in an earlier tick
    assert paths(guest.run(change)) == told


def test_what_was_written_between_two_commands_is_neither_ones(guest: GuestProcess) -> None:
    guest.run("mkdir artifacts")
    guest.run("(sleep 0.2; echo late > artifacts/late; touch written) & true")
    guest.await_file("written")
    time.sleep(0.02)
    assert paths(guest.run("echo mine > artifacts/mine")) == [b"mine"]


def test_who_waited_for_the_shell_is_not_told_what_was_written_before_it_began(guest: GuestProcess) -> None:
    guest.run("mkdir artifacts")
    first = guest.later("touch begun; sleep 0.2; echo 1 > artifacts/first; sleep 0.05")
    guest.await_file("begun")
    second = guest.later("echo 2 > artifacts/second")
    assert paths(first.result(10)) == [b"first"]
    assert paths(second.result(10)) == [b"second"]


def test_commands_side_by_side_may_both_tell_a_file(guest: GuestProcess) -> None:
    guest.run("mkdir artifacts")
    long = guest.later("touch begun; sleep 0.3", shell=None)
    guest.await_file("begun")
    assert paths(guest.run("echo x > artifacts/x")) == [b"x"]
    assert paths(long.result(10)) == [b"x"]


def test_a_repeated_request_is_told_the_same(guest: GuestProcess) -> None:
    first = guest.run("mkdir artifacts; echo x > artifacts/x", id="same")
    guest.run("rm -r artifacts")
    assert guest.run("mkdir artifacts; echo x > artifacts/x", id="same") == first
    assert paths(first) == [b"x"]


def test_names_of_any_bytes_arrive_as_they_are(guest: GuestProcess) -> None:
    names = [b"\xff\xfe", "é☃".encode(), b"new\nline", b"%41 &?#", b'"quote"\\', b"-rf", b"x" * 255]
    guest.run("mkdir artifacts")
    code = f"[open(b'artifacts/' + n, 'w').close() for n in {names!r}]"
    assert sorted(paths(guest.run(["python3", "-c", code]))) == sorted(names)


def test_a_directory_of_links_to_the_guests_own_memory_tells_nothing(guest: GuestProcess) -> None:
    answer = guest.run(
        "mkdir artifacts; cd artifacts; ln -s /proc/self/environ a; ln -s /proc/self p; ln -s / r; ln -s b b"
    )
    assert (answer.artifacts, answer.exit_code) == ([], 0)
    assert guest.run("cd; rm -r artifacts; ln -s /proc/self artifacts; ls").artifacts == []


def test_what_its_owner_may_not_read_is_told_without_a_digest(guest: GuestProcess) -> None:
    answer = guest.run("umask 777; mkdir -m 700 artifacts; echo x > artifacts/x; mkdir -m 0 artifacts/d")
    assert [(a.path, a.sha256) for a in answer.artifacts] == [(b"artifacts/x", None)]


def test_a_hundred_are_told_and_that_there_are_more(guest: GuestProcess) -> None:
    exactly = guest.run("mkdir artifacts; cd artifacts; touch {1..100}")
    assert (len(exactly.artifacts), exactly.artifacts_truncated) == (100, False)
    more = guest.run("touch {101..300}")
    assert (len(more.artifacts), more.artifacts_truncated) == (100, True)


@pytest.mark.parametrize(
    "code",
    [
        "for n in range(20000): open(f'artifacts/{n}', 'w').close()",
        "import os\nfor n in range(3000): os.mkdir('artifacts/' + 'd/' * n) if n < 1000 else None",
        "for n in range(300): open(f'artifacts/{n}', 'w').write('x' * 1000000)",
        "for n in range(4000): open(f'artifacts/{n:0>250}', 'w').close()",
    ],
    ids=["many", "deep", "large", "long names"],
)
def test_a_directory_beyond_all_bounds_costs_a_moment(guest: GuestProcess, code: str) -> None:
    guest.run(["python3", "-c", f"import os; os.mkdir('artifacts')\n{code}"], timeout=60)
    began = time.monotonic()
    answer = guest.run("echo x > artifacts/zzz")
    assert time.monotonic() - began < 1
    assert len(answer.artifacts) <= 100


def test_files_that_change_all_the_time_are_no_trouble(guest: GuestProcess) -> None:
    """Directories become links and back while they are looked at."""
    guest.run("mkdir -p artifacts/d; echo x > artifacts/d/x")
    swap = "while :; do mv artifacts/d e; ln -s /proc/1 artifacts/d; rm artifacts/d; mv e artifacts/d; done"
    busy = guest.later(swap, timeout=2, shell=None)
    stop = threading.Event()
    threading.Timer(1.5, stop.set).start()
    while not stop.is_set():
        assert set(paths(guest.run("touch artifacts/d/x 2>/dev/null; true"))) <= {b"d/x"}
    assert busy.result(10).timed_out
