"""How many commands run, in which order, and that one id runs once."""

from __future__ import annotations

import os
import time

import pytest
from guest_process import GuestProcess, text

from server import errors
from server.guest import protocol


def test_the_same_id_runs_once_and_gives_the_same_answer(guest: GuestProcess) -> None:
    first = guest.run("echo x >> runs; cat runs; head -c 300 /dev/urandom", id="same")
    again = guest.run("echo x >> runs; cat runs; head -c 300 /dev/urandom", id="same")
    assert (first.new, again.new) == (True, False)
    assert first == again
    assert (guest.home / "runs").read_text() == "x\n"


def test_the_same_id_is_waited_for_while_it_runs(guest: GuestProcess) -> None:
    first = guest.later("sleep 0.4; echo x >> runs; echo done", id="same")
    second = guest.later("sleep 0.4; echo x >> runs; echo done", id="same")
    assert text(first.result(5)) == text(second.result(5)) == "done\n"
    assert (guest.home / "runs").read_text() == "x\n"


def test_the_same_id_for_another_command_is_a_conflict(guest: GuestProcess) -> None:
    guest.run("echo one", id="same", mark="one")
    with pytest.raises(errors.ExecutionExists):
        guest.run("echo two > ran", id="same", mark="two")
    assert not (guest.home / "ran").exists()


def test_a_result_that_is_no_longer_kept_is_refused_and_not_run_again(guest: GuestProcess) -> None:
    guest.run("echo x >> runs", id="old")
    for _ in range(6):
        guest.run("head -c 1000000 /dev/zero")
    with pytest.raises(errors.ResultForgotten):
        guest.run("echo x >> runs", id="old")
    assert (guest.home / "runs").read_text() == "x\n"


def test_a_refused_command_may_be_asked_for_again(guest: GuestProcess) -> None:
    with pytest.raises(errors.NoSuchDirectory):
        guest.run("pwd", id="again", cwd=f"{guest.home}/later")
    guest.run("mkdir later")
    assert text(guest.run("pwd", id="again", cwd=f"{guest.home}/later")) == f"{guest.home}/later\n"


def test_who_waits_for_a_command_that_is_refused_gets_the_same_refusal(guest: GuestProcess) -> None:
    busy = guest.later("sleep 0.5")
    time.sleep(0.1)
    first = guest.later("pwd", id="twice", cwd="/nowhere")
    time.sleep(0.1)
    second = guest.later("pwd", id="twice", cwd="/nowhere")
    assert busy.result(5).exit_code == 0
    assert isinstance(first.exception(5), errors.NoSuchDirectory)
    assert isinstance(second.exception(5), errors.NoSuchDirectory)


def test_a_command_goes_on_when_its_caller_has_gone(guest: GuestProcess) -> None:
    head = {
        "verb": "run",
        "execution": "gone",
        "fingerprint": "",
        "command": "sleep 0.3; echo x >> runs; echo done",
    }
    rest = {"timeout": 10, "language": "bash", "shell": "main", "cwd": None, "env": {}, "stdin": False}
    with guest.connection() as connection:
        protocol.send(connection, {**head, **rest})
        time.sleep(0.1)
    assert text(guest.run("sleep 0.3; echo x >> runs; echo done", id="gone")) == "done\n"
    assert (guest.home / "runs").read_text() == "x\n"


def test_more_commands_at_once_than_may_are_refused(unbound: GuestProcess) -> None:
    unbound.bind(executions=3)
    running = [unbound.later("touch ran$RANDOM; sleep 0.6", shell=None) for _ in range(3)]
    time.sleep(0.2)
    with pytest.raises(errors.TooManyExecutions):
        unbound.run("true")
    assert [one.result(5).exit_code for one in running] == [0, 0, 0]
    assert unbound.run("true").exit_code == 0


def test_waiting_commands_count_too(unbound: GuestProcess) -> None:
    unbound.bind(executions=3)
    queued = [unbound.later("sleep 0.3") for _ in range(3)]
    time.sleep(0.1)
    with pytest.raises(errors.TooManyExecutions):
        unbound.run("true", shell="another")
    assert [one.result(5).exit_code for one in queued] == [0, 0, 0]


def test_a_shell_runs_its_commands_one_at_a_time_in_the_order_of_asking(guest: GuestProcess) -> None:
    asked = []
    for number in range(6):
        asked.append(guest.later(f"echo +{number} >> order; sleep 0.2; echo -{number} >> order"))
        time.sleep(0.1)
    assert all(one.result(10).exit_code == 0 for one in asked)
    expected = [sign + str(number) for number in range(6) for sign in "+-"]
    assert (guest.home / "order").read_text().split() == expected


def test_processes_of_their_own_run_beside_each_other(guest: GuestProcess) -> None:
    began = time.monotonic()
    beside = [guest.later("sleep 0.5", shell=None) for _ in range(6)]
    assert text(guest.run("echo at once", shell=None)) == "at once\n"
    assert all(one.result(5).exit_code == 0 for one in beside)
    assert time.monotonic() - began < 2


def test_a_command_whose_turn_does_not_come_in_time_is_refused_and_does_not_run(guest: GuestProcess) -> None:
    busy = guest.later("sleep 0.8; echo end")
    time.sleep(0.1)
    with pytest.raises(errors.ShellBusy):
        guest.run("touch ran", timeout=0.2)
    assert text(busy.result(5)) == "end\n"
    assert guest.run("test ! -e ran").exit_code == 0


def test_the_seventeenth_named_shell_is_refused(guest: GuestProcess) -> None:
    for number in range(16):
        guest.run("true", shell=f"s{number}")
    with pytest.raises(errors.TooManyShells):
        guest.run("true", shell="one-too-many")
    assert guest.run("true", shell="s3").exit_code == 0
    guest.run("exit", shell="s3")
    assert guest.run("true", shell="one-more").exit_code == 0


def test_a_user_at_the_limit_of_processes_gets_a_result_and_the_shell_recovers(unbound: GuestProcess) -> None:
    unbound.bind(processes=20, uid=29002)
    os.chown(unbound.home, 29002, 29002)
    unbound.run("true")
    answer = unbound.run("for i in $(seq 40); do sleep 83.25 & done; wait", timeout=1)
    assert answer.stderr.total > 0
    assert text(unbound.run("echo alive")) == "alive\n"
    assert unbound.run("pkill -f 83.25; true").exit_code in (0, 143)


def test_a_session_that_ran_what_has_long_values_can_still_be_described(guest: GuestProcess) -> None:
    """Otherwise it could never be paused: it is described before."""
    for number in range(12):
        guest.python("'\\N{SNOWMAN}' * 300_000", id=f"long-{number}", mark="mine")
    told = guest.client.describe(guest.sandbox, with_results=True)
    assert b"long-0" in told, "that it ran is not forgotten"
    assert len(told) <= protocol.LONGEST_DESCRIPTION


def test_a_terminal_whose_process_is_killed_before_its_program_starts_hangs_nobody(
    guest: GuestProcess,
) -> None:
    loop = "import os\nopen('begun', 'w')\nwhile True:\n  try: os.kill(-1, 9)\n  except OSError: pass"
    guest.later(["python3", "-c", loop], timeout=30, id="killer")
    guest.await_file("begun")
    for _ in range(12):
        answer = guest.run(["sleep", "0.2"], timeout=1, screen=(80, 24))
        assert answer.exit_code in (126, 137)
    guest.client.cancel(guest.sandbox, "killer")
    assert text(guest.run(["echo", "alive"], screen=(80, 24))) == "alive\r\n"
