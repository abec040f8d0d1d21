"""Attacks with processes, CPU and signals (A01 to A09b)."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from invariants import Neighbour, Session, is_problem, nothing_left

IGNORED_BY_DEFAULT = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
STOPPING = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
CPU_SECONDS = (
    "cat /sys/fs/cgroup/cpuacct/cpuacct.usage 2>/dev/null"
    " || awk '/usage_usec/ {print $2*1000}' /sys/fs/cgroup/cpu.stat"
)


def test_a01_a_fork_bomb_leaves_its_owner_able_to_run_commands(
    session: Session, neighbour: Neighbour
) -> None:
    """The guest keeps a reserve of processes: a new command runs while the bomb lives, and after it."""
    with neighbour.undisturbed():
        bomb = threading.Thread(
            target=session.execute, args=(":(){ :|:& };:; sleep 60",), kwargs={"timeout": 3}
        )
        bomb.start()
        time.sleep(1)
        assert session.beside("echo alive", timeout=5)["stdout"] == "alive\n"
        bomb.join(timeout=30)
    session.is_usable()


def test_a02_busy_loops_get_the_cpus_of_their_session_and_no_more(
    session: Session, neighbour: Neighbour
) -> None:
    """Sixty spinning processes use one CPU between them."""
    with neighbour.undisturbed():
        before, began = int(session.beside(CPU_SECONDS)["stdout"]), time.monotonic()
        session.run("for i in $(seq 56); do while :; do :; done & done; wait", timeout=4)
        used = (int(session.beside(CPU_SECONDS)["stdout"]) - before) / 1e9
        assert used < 1.2 * (time.monotonic() - began)


@pytest.mark.parametrize("shell", ["main", None])
def test_a03_a_command_that_ignores_signals_ends_at_its_timeout(session: Session, shell: str | None) -> None:
    """Killed within two seconds of the timeout, and the result says so."""
    began = time.monotonic()
    result = session.run("trap '' TERM INT HUP QUIT; while :; do sleep 1; done", timeout=1, shell=shell)
    assert (result["timed_out"], result["exit_code"]) == (True, 124)
    assert time.monotonic() - began < 3.5
    session.is_usable()


@pytest.mark.parametrize("shell", ["main", None])
def test_a04_a_daemon_that_keeps_the_output_open_holds_nobody(session: Session, shell: str | None) -> None:
    """The answer comes when the command itself ends."""
    began = time.monotonic()
    assert session.run("(setsid sh -c 'sleep 1000' &) ; echo hi", timeout=5, shell=shell)["stdout"] == "hi\n"
    assert time.monotonic() - began < 2


def test_a05_a_command_that_stops_itself_is_killed_all_the_same(session: Session) -> None:
    for shell in ("main", None):
        assert session.run("kill -STOP $$", timeout=1, shell=shell)["timed_out"]
    session.is_usable()


def test_a06_a_daemon_dies_with_its_session(session: Session) -> None:
    """Two forks, a session of its own and deaf to signals: closing ends it, and nothing is left."""
    session.run("(setsid bash -c \"trap '' HUP TERM INT; while :; do sleep 1; done\" &)")
    container, directory = session.container, session.directory
    assert session.close().status_code == 204
    nothing_left(session, container, directory)


def test_a07_commands_beyond_the_limit_are_refused_and_say_when_to_retry(
    session: Session, neighbour: Neighbour
) -> None:
    """Of 200 at once sixteen run; the others get a 429 with Retry-After, and nobody else notices."""
    with neighbour.undisturbed(), ThreadPoolExecutor(200) as pool:
        answers = list(pool.map(lambda _: session.execute(["sleep", "3"], timeout=6), range(200)))
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(answers) - len(refused) >= 16
    for answer in refused:
        is_problem(answer, "too_many_executions")
        assert int(answer.headers["Retry-After"]) > 0
    session.is_usable()


def test_a_full_process_table_gives_results_or_refusals_but_never_silence(session: Session) -> None:
    """All processes taken, and forty commands with input at once: none finds a guest that seems dead."""
    session.run("for i in $(seq 58); do sleep 60 & done", timeout=5)
    with ThreadPoolExecutor(40) as pool:
        asked = [
            pool.submit(session.execute, ["sleep", "1"], timeout=3, stdin="x" * 200_000) for _ in range(40)
        ]
        answers = [future.result() for future in asked]
    codes = Counter("ran" if answer.ok else answer.json()["code"] for answer in answers)
    assert set(codes) <= {"ran", "too_many_executions"}
    session.is_usable()


@pytest.mark.parametrize(
    "command",
    [[], [""], ["echo", "x" * 3_000_000], ["echo", "a\0b"], ["echo", 5], ["echo", None], [["echo"]], {}, 5],
)
def test_a08_a_command_that_cannot_be_run_is_refused_by_name(session: Session, command: Any) -> None:
    problem = is_problem(session.execute(command), "invalid_request")
    assert problem["field"].startswith("command")


def test_a08_ten_thousand_arguments_are_fine(session: Session) -> None:
    assert session.run(["bash", "-c", "echo $#", *["a"] * 10_000])["stdout"] == "9999\n"


def test_a09_every_exit_code_is_told(session: Session) -> None:
    told = [session.run(f"(exit {code})")["exit_code"] for code in range(0, 256, 5)]
    assert told == list(range(0, 256, 5))
    assert [session.run(["bash", "-c", f"exit {code}"])["exit_code"] for code in (0, 1, 124, 137, 255)] == [
        0,
        1,
        124,
        137,
        255,
    ]


def test_a09_every_signal_is_told_by_name(session: Session) -> None:
    """Also a 137 that no timeout and no want of memory is behind."""
    for number in set(range(1, 65)) - IGNORED_BY_DEFAULT - STOPPING - {32, 33}:
        result = session.run(["dash", "-c", f"kill -{number} $$"])  # bash itself ignores SIGQUIT
        name = signal.Signals(number).name if number in iter(signal.Signals) else f"SIG{number}"
        assert (result["signal"], result["exit_code"]) == (name, 128 + number)
        assert not (result["timed_out"] or result["oom_killed"])


def test_a09_a_crash_leaves_no_core_file(session: Session) -> None:
    for name in ("SEGV", "ABRT"):
        result = session.run(
            [
                "python3",
                "-c",
                f"import os, signal; x = bytearray(1 << 26); os.kill(os.getpid(), signal.SIG{name})",
            ]
        )
        assert result["signal"] == f"SIG{name}"
    assert session.run("ls -A /workspace /tmp | grep -c core")["stdout"] == "0\n"


@pytest.mark.parametrize("timeout", [0, -1, 1e18, "5", True, [], 1e9])
def test_a09b_a_timeout_that_makes_no_sense_is_refused_by_name(session: Session, timeout: Any) -> None:
    assert is_problem(session.execute("true", timeout=timeout), "invalid_request")["field"] == "timeout"


def test_a09b_a_tiny_timeout_and_none_at_all_are_fine(session: Session) -> None:
    assert session.run("sleep 5", timeout=0.0001)["timed_out"]
    assert session.run("echo hi", timeout=None)["stdout"] == "hi\n"


@pytest.mark.parametrize(
    "env",
    [
        {"A=B": "x"},
        {"A\0": "x"},
        {"A\n": "x"},
        {"": "x"},
        {"A": "x\0"},
        {"A": 5},
        {"BASH_FUNC_ls%%": "() { :; }"},
        {"UID": "0"},
        {f"A{n}": "x" for n in range(10_000)},
        {"A": "x" * 1_000_000},
        [],
    ],
    ids=lambda env: repr(env)[:20],
)
def test_a09b_an_environment_that_cannot_be_set_is_refused_by_name(session: Session, env: Any) -> None:
    assert is_problem(session.execute("true", env=env), "invalid_request")["field"].startswith("env")


@pytest.mark.parametrize(
    "env",
    [
        {"LD_PRELOAD": "/workspace/evil.so"},
        {"PATH": ""},
        {"PYTHONPATH": "/workspace"},
        {"BASH_ENV": "/workspace/x"},
    ],
)
def test_a09b_variables_reach_the_command_but_never_the_guest(session: Session, env: dict[str, str]) -> None:
    """A broken PATH is the caller's own problem: 127, and without it all is as before."""
    for shell in ("main", None):
        session.run("true", env=env, shell=shell)
    session.is_usable()


@pytest.mark.parametrize(
    "env",
    [
        {"PATH": ""},
        {"PATH": "/nowhere"},
        {"PROMPT_COMMAND": "sleep 9"},
        {"TMOUT": "1"},
        {"LD_PRELOAD": "/workspace/evil.so"},
    ],
)
def test_a_session_with_a_treacherous_environment_answers_with_results(
    attacker: Any, env: dict[str, str]
) -> None:
    """The caller's variables are the caller's problem: a result with an exit code, never a 503."""
    session = attacker.open(env=env)
    for shell in ("main", None):
        assert session.execute("echo hi", timeout=2, shell=shell).status_code == 200


@pytest.mark.parametrize(
    "cwd", ["/nowhere", "/etc/passwd", "/root", "/workspace/gone", "/run/sandbox", "a/" * 2000]
)
def test_a09b_a_directory_that_cannot_be_entered_is_refused_by_name(session: Session, cwd: str) -> None:
    for shell in ("main", None):
        assert is_problem(session.execute("true", cwd=cwd, shell=shell), "invalid_request")["field"] == "cwd"
    session.is_usable()


def test_a09b_links_to_directories_and_deleted_directories_are_what_they_are_in_the_sandbox(
    session: Session,
) -> None:
    session.run("ln -s / root; mkdir gone; cd gone; rmdir /workspace/gone")
    assert session.run("ls -d workspace", cwd="/workspace/root")["stdout"] == "workspace\n"
    session.is_usable()


def test_a_process_that_stops_everything_it_can_does_not_stop_the_guest(
    session: Session, neighbour: Neighbour
) -> None:
    """A command may be stopped before it has become itself; it ends by its timeout, and the next ones too."""
    stopper = "import os\nwhile True:\n    try: os.kill(-1, 19)\n    except OSError: pass"
    session.run(f"python3 -c '{stopper}' &", timeout=3)  # it would stop a command that goes on
    time.sleep(0.3)
    with neighbour.undisturbed():
        for _ in range(40):
            began = time.monotonic()
            answer = session.execute(["true"], timeout=0.1, wait=30)
            assert answer.status_code == 200, answer.text
            assert time.monotonic() - began < 5


def test_a_shell_that_was_killed_between_two_commands_is_replaced_and_the_command_runs(
    session: Session,
) -> None:
    """Nothing is reported as done that was never run."""
    session.run("(sleep 0.2; kill -9 $$) &")
    time.sleep(0.7)
    result = session.run("echo ran")
    assert (result["stdout"], result["exit_code"], result["shell_restarted"]) == ("ran\n", 0, True)


@pytest.mark.parametrize(
    "command", ["exec 0</dev/null 10<&-", "TMOUT=1", "PROMPT_COMMAND='[ -e x ] && exit 0; touch x'"]
)
def test_a_shell_that_ended_itself_between_two_commands_is_replaced_and_the_command_runs(
    session: Session, command: str
) -> None:
    session.run(command)
    time.sleep(1.3)
    assert session.run("echo ran")["stdout"] == "ran\n"
