"""What goes into a command and what comes out of it: whole, apart, in order, and bounded."""

from __future__ import annotations

import hashlib
import time

import pytest
from guest_process import OUTPUT_LIMIT, GuestProcess, errors_of, text

BIG = bytes(range(256)) * (50 << 12)  # 50 MiB
EVERYWHERE = pytest.mark.parametrize("shell", ["main", None])


@EVERYWHERE
def test_a_stdin_of_50_mebibytes_is_read_to_its_end(guest: GuestProcess, shell: str | None) -> None:
    answer = guest.run("sha256sum", stdin=BIG, shell=shell)
    assert text(answer).split()[0] == hashlib.sha256(BIG).hexdigest()


@EVERYWHERE
def test_a_stdin_of_50_mebibytes_that_nobody_reads_holds_nobody(
    guest: GuestProcess, shell: str | None
) -> None:
    began = time.monotonic()
    assert text(guest.run("echo done", stdin=BIG, shell=shell)) == "done\n"
    assert text(guest.run("head -c 3 | od -An -tx1", stdin=BIG, shell=shell)) == " 00 01 02\n"
    assert time.monotonic() - began < 3


@EVERYWHERE
def test_without_a_stdin_a_command_reads_nothing(guest: GuestProcess, shell: str | None) -> None:
    assert text(guest.run("cat; echo end", shell=shell)) == "end\n"
    assert text(guest.run("cat; echo end", stdin=b"", shell=shell)) == "end\n"


def test_a_stdin_belongs_to_its_command_alone(guest: GuestProcess) -> None:
    guest.run("read line", stdin=b"first\nleft over\n")
    assert text(guest.run("echo $line; cat", stdin=b"second\n")) == "first\nsecond\n"


def test_a_large_stdin_and_a_large_output_at_once_do_not_lock_each_other(guest: GuestProcess) -> None:
    answer = guest.run("cat", stdin=BIG)
    assert answer.stdout.total == len(BIG)


@EVERYWHERE
def test_stdout_and_stderr_come_apart_and_together_in_order(guest: GuestProcess, shell: str | None) -> None:
    answer = guest.run("for i in 1 2 3; do echo o$i; sleep 0.1; echo e$i >&2; sleep 0.1; done", shell=shell)
    assert (text(answer), errors_of(answer)) == ("o1\no2\no3\n", "e1\ne2\ne3\n")
    assert answer.output.first == b"o1\ne1\no2\ne2\no3\ne3\n"


def test_the_output_of_one_stream_alone_is_the_output(guest: GuestProcess) -> None:
    assert guest.run("echo o").output.first == b"o\n"
    assert guest.run("echo e >&2").output.first == b"e\n"
    assert guest.run("true").output.total == 0


@EVERYWHERE
def test_output_over_the_limit_keeps_head_and_tail_and_tells_the_true_size(
    guest: GuestProcess, shell: str | None
) -> None:
    answer = guest.run("echo first; head -c 5000000 /dev/zero; echo; echo last", shell=shell)
    kept = answer.stdout.first + answer.stdout.last
    assert answer.stdout.total == 5000000 + len("first\n\nlast\n")
    assert len(kept) == OUTPUT_LIMIT
    assert (kept[:6], kept[-6:]) == (b"first\n", b"\nlast\n")


def test_both_streams_over_the_limit_fit_into_the_answer(guest: GuestProcess) -> None:
    answer = guest.run("head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2")
    assert (answer.stdout.total, answer.stderr.total, answer.output.total) == (3000000, 3000000, 6000000)


def test_output_of_exactly_the_limit_is_whole(guest: GuestProcess) -> None:
    answer = guest.run(f"head -c {OUTPUT_LIMIT} /dev/zero")
    assert len(answer.stdout.first) + len(answer.stdout.last) == answer.stdout.total == OUTPUT_LIMIT


def test_an_endless_output_ends_with_the_timeout_and_grows_nothing(guest: GuestProcess) -> None:
    answer = guest.run("yes", timeout=0.5)
    assert answer.timed_out
    assert answer.stdout.total > OUTPUT_LIMIT
    status = text(guest.run("grep VmRSS /proc/1/status"))
    assert int(status.split()[1]) < 60_000, status


@EVERYWHERE
def test_bytes_that_are_not_text_survive(guest: GuestProcess, shell: str | None) -> None:
    answer = guest.run(r"printf '\0\377\200a\xc3'", shell=shell)
    assert answer.stdout.first + answer.stdout.last == b"\x00\xff\x80a\xc3"


def test_the_last_words_of_a_pipe_are_not_lost(guest: GuestProcess) -> None:
    """The command's own end is told beside its output: neither may overtake the other."""
    for shell in ("main", None) * 10:
        assert guest.run("printf '%70000s' x", shell=shell).stdout.total == 70000


def test_a_command_that_closes_its_streams_is_waited_for(guest: GuestProcess) -> None:
    answer = guest.run("exec >&- 2>&-; sleep 0.2; (exit 5)")
    assert (answer.exit_code, answer.seconds >= 0.2) == (5, True)
    assert text(guest.run("echo back")) == "back\n"
