"""A session that has no processes left: whoever asks is told at once, and what can be kept is kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from expect import eventually
from guest_process import GuestProcess, text

UID = 29002  # the kernel counts processes by user, and other tests run beside these
PROCESSES = 40
BOMB = "for i in $(seq 100); do sleep 67.25 & done; wait"
HOLD = """
import os, time
try:
    while os.fork():
        pass
except BlockingIOError:
    open('full', 'w').close()
time.sleep(60)
"""


@pytest.fixture
def small(guest_code: Path) -> Iterator[GuestProcess]:
    guest = GuestProcess(guest_code)
    os.chown(guest.home, UID, UID)
    guest.await_socket()
    guest.bind(uid=UID, processes=PROCESSES)
    yield guest
    guest.stop()


def test_after_a_fork_bomb_that_ended_by_itself_the_shell_goes_on(small: GuestProcess) -> None:
    """bash would wait, before its next order, for the last process that it started."""
    small.run("kept=yes")
    bomb = small.run(BOMB, timeout=60)
    assert (bomb.exit_code, bomb.timed_out, bomb.restarted) == (254, False, False)
    answer = small.run("echo $kept")
    assert (text(answer), answer.restarted) == ("yes\n", False)
    assert answer.seconds < 3
    eventually(lambda: not small.alive("sleep 67.25"), seconds=3)


def test_what_an_earlier_command_left_in_the_background_survives_and_the_shell_is_replaced(
    small: GuestProcess,
) -> None:
    small.run("kept=yes; sleep 67.25 &")
    small.later(["python3", "-c", HOLD], timeout=60)
    small.await_file("full")
    refused = small.run("/bin/true", timeout=60)
    assert (refused.exit_code, refused.restarted) == (254, True)
    answer = small.run("echo ${kept-gone}")
    assert (text(answer), answer.restarted) == ("gone\n", False)
    assert small.alive("sleep 67.25")


@pytest.mark.parametrize("moment", ["", "sleep 0.003; ", "sleep 0.3; "])
def test_a_command_whose_shell_dies_right_after_it_runs_once(small: GuestProcess, moment: str) -> None:
    """With the status of a fork that failed, for which the shell is looked at once more."""
    answer = small.run(f"echo ran >>count; ({moment}kill -9 $$) & (exit 254)")
    small.run("true")
    assert text(small.run("cat count")) == "ran\n"
    assert answer.exit_code in (254, 137)  # the latter if it was dead before it could tell
