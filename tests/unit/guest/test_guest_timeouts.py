"""A timeout ends the command and all that it started; the shell and what earlier commands left stay."""

from __future__ import annotations

import time

import pytest
from guest_process import GuestProcess, errors_of, text

STUBBORN = "trap '' INT TERM HUP; while :; do sleep 0.05; done"


def gone(guest: GuestProcess, pattern: str) -> bool:
    deadline = time.monotonic() + 3
    while guest.alive(pattern) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not guest.alive(pattern)


@pytest.mark.parametrize("shell", ["main", None])
def test_a_timeout_is_told_and_the_command_is_dead(guest: GuestProcess, shell: str | None) -> None:
    answer = guest.run("echo before; sleep 61.25; echo after", timeout=0.3, shell=shell)
    assert (answer.timed_out, answer.exit_code, text(answer)) == (True, 124, "before\n")
    assert 0.3 <= answer.seconds < 2
    assert gone(guest, "sleep 61.25")


def test_an_exit_code_of_124_is_no_timeout(guest: GuestProcess) -> None:
    answer = guest.run("(exit 124)")
    assert (answer.exit_code, answer.timed_out) == (124, False)


def test_the_shells_state_survives_a_timeout(guest: GuestProcess) -> None:
    guest.run("cd /usr; a=1; f() { echo f; }")
    answer = guest.run("b=2; while true; do sleep 0.01; done; c=3", timeout=0.3)
    assert (answer.timed_out, answer.restarted, answer.cwd) == (True, False, "/usr")
    assert text(guest.run("echo $a $b ${c-unset}; f; pwd")) == "1 2 unset\nf\n/usr\n"


def test_a_loop_without_any_program_can_be_ended(guest: GuestProcess) -> None:
    guest.run("a=1")
    answer = guest.run("while :; do :; done", timeout=0.3)
    assert (answer.timed_out, answer.restarted) == (True, False)
    assert text(guest.run("echo $a")) == "1\n"


def test_a_program_that_ignores_signals_is_killed_and_the_shell_stays(guest: GuestProcess) -> None:
    guest.run("a=1")
    answer = guest.run(f'bash -c "{STUBBORN}"', timeout=0.3)
    assert (answer.timed_out, answer.restarted) == (True, False)
    assert text(guest.run("echo $a")) == "1\n"


def test_a_shell_that_cannot_be_kept_is_replaced_and_the_result_says_so(guest: GuestProcess) -> None:
    guest.run("a=1")
    answer = guest.run(STUBBORN, timeout=0.3)
    assert (answer.timed_out, answer.exit_code, answer.restarted) == (True, 124, True)
    assert text(guest.run("echo ${a-unset}")) == "unset\n"


def test_a_stopped_program_is_ended_by_the_timeout(guest: GuestProcess) -> None:
    answer = guest.run("bash -c 'kill -STOP $$'", timeout=0.3)
    assert (answer.timed_out, answer.restarted) == (True, False)


@pytest.mark.parametrize("shell", ["main", None])
def test_children_that_left_with_setsid_are_killed_by_the_timeout(
    guest: GuestProcess, shell: str | None
) -> None:
    """Alone in a session of its own, and adopted by PID 1 after a double fork."""
    command = "setsid sleep 62.25 & (setsid nohup sleep 63.25 >/dev/null 2>&1 &) ; sleep 64.25"
    assert guest.run(command, timeout=0.5, shell=shell).timed_out
    assert all(gone(guest, f"sleep {n}.25") for n in (62, 63, 64))


def test_a_fork_storm_is_ended_by_the_timeout(guest: GuestProcess) -> None:
    storm = "f() { for i in 1 2; do setsid bash -c 'sleep 65.25' & done; sleep 0.1; f & }; f; sleep 66.25"
    assert guest.run(storm, timeout=0.7).timed_out
    assert gone(guest, r"sleep 6[56]\.25")
    assert text(guest.run("echo alive")) == "alive\n"


def test_background_children_of_earlier_commands_are_spared(guest: GuestProcess) -> None:
    guest.run("sleep 67.25 & setsid sleep 68.25 & (sleep 69.25 &)")
    time.sleep(0.02)  # start times are told in hundredths of a second
    assert guest.run("sleep 70.25", timeout=0.3).timed_out
    assert [guest.alive(f"sleep {n}.25") for n in (67, 68, 69, 70)] == [True, True, True, False]


def test_a_background_server_that_minds_interrupts_is_spared_too(guest: GuestProcess) -> None:
    """At a terminal Ctrl-C reaches the foreground alone; uvicorn, redis and node stop on SIGINT."""
    lines = (
        "import signal, time",
        "signal.signal(2, lambda *_: exit())",
        'open("up", "w")',
        "time.sleep(71.25)",
    )
    server = "\n".join(lines)
    guest.run(f"python3 -c '{server}' &")
    guest.await_file("up")
    assert guest.alive(r"time.sleep\(71.25\)")
    assert guest.run("sleep 72.25", timeout=0.3).timed_out
    time.sleep(0.2)
    assert guest.alive(r"time.sleep\(71.25\)")


def test_a_timeout_in_one_shell_leaves_other_shells_alone(guest: GuestProcess) -> None:
    other = guest.later("sleep 0.8; echo undisturbed", shell="other")
    alone = guest.later("sleep 0.8; echo undisturbed", shell=None)
    assert guest.run("sleep 73.25", timeout=0.3).timed_out
    assert text(other.result(5)) == text(alone.result(5)) == "undisturbed\n"


def test_a_background_child_does_not_hold_the_answer(guest: GuestProcess) -> None:
    began = time.monotonic()
    for shell in ("main", None):
        answer = guest.run("sleep 74.25 & echo started", shell=shell)
        assert (text(answer), answer.timed_out) == ("started\n", False)
    assert time.monotonic() - began < 2
    assert guest.alive("sleep 74.25")


def test_a_background_child_cannot_speak_into_a_later_commands_output(guest: GuestProcess) -> None:
    guest.run("(sleep 0.2; echo late; echo late >&2; touch said) &")
    answer = guest.run("while [ ! -e said ]; do sleep 0.02; done; echo mine")
    assert (text(answer), errors_of(answer)) == ("mine\n", "")


def test_a_background_child_may_go_on_writing_without_a_reader(guest: GuestProcess) -> None:
    """Much more than a pipe holds, after its command has been answered."""
    guest.run("(sleep 0.1; head -c 3000000 /dev/zero; touch finished) &")
    guest.await_file("finished")


def test_orphans_are_reaped(guest: GuestProcess) -> None:
    guest.run("for i in $(seq 20); do (true & sleep 0 &); done")
    time.sleep(0.2)
    assert text(guest.run("ps -eo stat= | grep -c Z || true")) == "0\n"


def test_a_timeout_shorter_than_a_tick_still_answers(guest: GuestProcess) -> None:
    answer = guest.run("sleep 75.25", timeout=0.0001)
    assert answer.timed_out
    assert text(guest.run("echo alive")) == "alive\n"


def test_a_shell_whose_builtins_are_hidden_is_replaced_rather_than_lost(guest: GuestProcess) -> None:
    guest.run("builtin() { :; }", timeout=0.3)
    assert text(guest.run("echo alive")) == "alive\n"


def test_output_written_up_to_the_timeout_is_kept(guest: GuestProcess) -> None:
    answer = guest.run("for i in 1 2 3; do echo $i; done; echo e >&2; sleep 76.25", timeout=0.3)
    assert (text(answer), errors_of(answer)) == ("1\n2\n3\n", "e\n")
