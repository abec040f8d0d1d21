"""Attacks through what a command prints (A30 to A33)."""

from __future__ import annotations

import base64
import json
import time

import pytest
from invariants import Neighbour, Session
from stack import Stack

LIMIT = 1 << 20


@pytest.mark.parametrize("command", ["yes", "yes >&2", "for i in $(seq 20); do yes & yes >&2 & done; wait"])
def test_a30_a_flood_is_cut_counted_and_ended_by_the_timeout(
    session: Session, neighbour: Neighbour, command: str
) -> None:
    """The server's memory stays flat, and the timeout holds although the pipe is never empty."""
    with neighbour.undisturbed():
        began = time.monotonic()
        result = session.run(command, timeout=3)
        assert time.monotonic() - began < 6
    assert result["timed_out"] and result["truncated"]
    assert result["stdout_bytes"] + result["stderr_bytes"] > 10 * LIMIT
    assert len(result["stdout"]) < 1.1 * LIMIT and len(result["stderr"]) < 1.1 * LIMIT
    session.is_usable()


def test_a_flood_from_the_background_holds_neither_its_command_nor_the_next(session: Session) -> None:
    for command in ("for i in $(seq 20); do yes & done; echo hi", "echo next"):
        began = time.monotonic()
        assert session.run(command, timeout=5)["exit_code"] == 0
        assert time.monotonic() - began < 3
    assert session.run("echo clean")["stdout"] == "clean\n"


def test_a_flood_into_the_reports_does_not_move_the_timeout(session: Session) -> None:
    """Anybody in the sandbox may write where the end of a command is reported."""
    began = time.monotonic()
    session.execute("for i in $(seq 30); do cat /dev/zero >/run/shells/1/reports & done; sleep 60", timeout=2)
    assert time.monotonic() - began < 5
    session.is_usable()


def test_a31_any_bytes_survive_in_valid_json(session: Session) -> None:
    result = session.run("head -c 1000000 /dev/urandom | tee r; md5sum <r >&2", timeout=10)
    raw = base64.b64decode(result["stdout_base64"])
    import hashlib

    assert hashlib.md5(raw).hexdigest() == result["stderr"].split()[0]


def test_a32_nul_survives_and_no_lone_surrogate_comes_out(session: Session) -> None:
    answer = session.execute(r"printf 'a\0b\xff\xfe\xed\xa0\x80'")
    result = answer.json()
    assert base64.b64decode(result["stdout_base64"]) == b"a\0b\xff\xfe\xed\xa0\x80"
    assert result["stdout"].startswith("a\0b")
    json.dumps(result, ensure_ascii=False).encode("utf-8")


def test_a32_a_character_split_in_two_writes_arrives_whole(session: Session) -> None:
    assert session.run(r"printf '\xf0\x9f'; sleep 0.3; printf '\x98\x80'")["stdout"] == "\U0001f600"


def test_a33_control_bytes_in_output_never_reach_the_log(session: Session, stack: Stack) -> None:
    marker = "pwnmarker"
    result = session.run(rf"printf '\e]0;{marker}\a\e[2J\e]52;c;{marker}\a\e[6n\x9b'")
    assert "\x1b]0;" in result["stdout"]
    session.run(f"\x1b]0;{marker}\x07 \x1b[2J", timeout=2)
    for name in ("web", "keeper"):
        log = stack.log(name)
        assert marker not in log and "\x1b" not in log


def test_output_after_the_end_of_its_command_belongs_to_nobody(session: Session) -> None:
    session.run("(sleep 0.3; echo late; echo late >&2) &")
    result = session.run("sleep 0.8; echo mine")
    assert (result["stdout"], result["stderr"]) == ("mine\n", "")


def test_a_thread_of_the_python_context_that_prints_for_ever_holds_nobody(session: Session) -> None:
    code = "import threading\ndef p():\n    while True: print('x' * 10000)\n"
    code += "threading.Thread(target=p, daemon=True).start()"
    session.python(code, timeout=3)
    began = time.monotonic()
    assert session.python("1 + 1", timeout=3)["value"] == "2"
    assert time.monotonic() - began < 4
