"""Attacks on the shells and contexts that stay: from inside, with what the language offers."""

from __future__ import annotations

import time

import pytest
from invariants import Session

SHELL_TRICKS = {
    "functions": "source(){ :; }; printf(){ :; }; cd(){ :; }; builtin(){ :; }; command(){ :; }",
    "disabled builtins": "enable -n builtin printf source",
    "aliases": "shopt -s expand_aliases; alias source=: builtin=: printf=:",
    "restricted": "set -r",
    "unbound": "set -u; unset PWD HOME OLDPWD",
    "errexit": "set -e; trap 'exit 5' RETURN",
    "debug trap": "shopt -s extdebug; trap false DEBUG",
    "posix": "set -o posix -o noclobber -o nounset; readonly PWD IFS=/0123456789",
    "no descriptors": "ulimit -n 4",
    "no processes": "ulimit -u 1",
    "no files": "ulimit -f 0",
    "no memory": "ulimit -v 1000",
    "prompt": "PROMPT_COMMAND='kill -STOP $$'",
    "closed": 'for i in $(seq 0 255); do eval "exec $i>&-" 2>/dev/null; done',
    "another program": "exec sleep 60",
    "exit that lasts": "trap 'while :; do :; done' EXIT INT TERM; exit 3",
    "unfinished": "{ echo 'a",
    "recursion": "f() { f; }; f",
    "huge variable": "x=$(head -c 30000000 /dev/zero | tr '\\0' x); x=$x$x$x$x$x$x$x$x$x$x",
}


@pytest.mark.parametrize("trick", SHELL_TRICKS.values(), ids=SHELL_TRICKS)
def test_no_trick_in_a_shell_makes_its_session_unusable(session: Session, trick: str) -> None:
    """Another shell works at once, the same one after at most one command more."""
    began = time.monotonic()
    session.execute(trick, timeout=2)
    assert session.run("echo another", shell="another")["stdout"] == "another\n"
    session.execute("echo first", timeout=2)
    assert session.run("echo second", timeout=3)["stdout"] == "second\n"
    assert time.monotonic() - began < 12


@pytest.mark.parametrize("trick", ["no files", "no processes", "posix", "unfinished", "aliases"])
def test_what_a_shell_can_survive_it_survives(session: Session, trick: str) -> None:
    """Harmless settings keep the shell and its state."""
    session.run("kept=yes")
    session.execute(SHELL_TRICKS[trick], timeout=2)
    assert session.run("echo $kept", timeout=2)["stdout"] == "yes\n"


def test_an_unset_pwd_under_nounset_is_not_a_timeout(session: Session) -> None:
    """Legal settings of a script: the command ends when it ends."""
    assert session.run("set -u; unset PWD", timeout=3)["timed_out"] is False


PYTHON_TRICKS = {
    "an untellable exception": "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
    "no stdout": "import sys; sys.stdout = sys.__stdout__ = None",
    "an odd stderr": "import sys; sys.stderr = object(); raise SystemExit('bye')",
    "closed descriptors": "import os; os.close(0); os.close(1); os.close(2)",
    "deep recursion": "def f(): return f()\nf()",
    "deep source": "(" * 10000 + ")" * 10000,
    "a value of astral characters": "'\\U0001f600' * 300000",
    "a value that is not text": "class A:\n    def __repr__(self): return 5\nA()",
    "a value that raises": "class A:\n    def __repr__(self): raise SystemExit(3)\nA()",
    "a kill of the parent": "import os; os.kill(os.getppid(), 9)",
    "a fork": "import os; os.fork()",
    "surrogates": "print('\\ud800'); '\\udfff'",
    "an odd exit": "raise SystemExit(10 ** 50)",
}


@pytest.mark.parametrize("trick", PYTHON_TRICKS.values(), ids=PYTHON_TRICKS)
def test_odd_python_keeps_its_context(session: Session, trick: str) -> None:
    """It ends in time, and the variables of earlier commands are still there."""
    session.python("kept = 'yes'")
    result = session.python(trick, timeout=4)
    assert not result["timed_out"]
    assert session.python("kept", timeout=4)["value"] == "'yes'"


HOSTILE_PYTHON = {
    "interrupts ignored": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "signals blocked": "import signal; signal.pthread_sigmask(0, range(1, 65))\nwhile True: pass",
    "all descriptors closed": "import os; os.closerange(0, 4096)",
    "the end": "import os; os._exit(3)",
    "a huge value": "'x' * (150 << 20)",
    "modules replaced": "import json, os, sys; json.dumps = os.open = os.dup2 = None; sys.modules.clear()",
    "a crash": "import ctypes; ctypes.string_at(0)",
    "a stop": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "an endless repr": "class A:\n    def __repr__(self):\n        while True: pass\nA()",
}


@pytest.mark.parametrize("trick", HOSTILE_PYTHON.values(), ids=HOSTILE_PYTHON)
def test_hostile_python_ends_and_leaves_a_usable_context(session: Session, trick: str) -> None:
    began = time.monotonic()
    session.execute(trick, language="python", timeout=2)
    session.execute("1", language="python", timeout=2)
    assert session.python("1 + 1", timeout=4)["value"] == "2"
    assert time.monotonic() - began < 12


def test_a_flood_of_names_for_shells_is_refused_and_the_known_ones_work_on(session: Session) -> None:
    codes = [session.execute("true", shell=f"s{n}").status_code for n in range(20)]
    assert codes == [200] * 16 + [429] * 4
    assert session.run("echo hi", shell="s0")["stdout"] == "hi\n"


def test_what_a_loser_of_a_turn_gets_is_a_refusal(session: Session) -> None:
    """Many commands at once on one shell, some impatient, some deadly: every one is answered."""
    from concurrent.futures import ThreadPoolExecutor

    commands = [("sleep 1", 3), ("echo hi", 0.3), ("kill -9 $$", 5), ("exit 3", 5), ("sleep 9", 1)] * 3
    with ThreadPoolExecutor(15) as pool:
        answers = list(pool.map(lambda asked: session.execute(asked[0], timeout=asked[1]), commands))
    assert {answer.status_code for answer in answers} <= {200, 429}
    session.is_usable()
