"""What is kept of an output, piece by piece."""

from __future__ import annotations

import pytest

from server.guest.capture import Capture, Output


@pytest.mark.parametrize("piece", [1, 3, 7, 100])
@pytest.mark.parametrize("limit", [1, 2, 9, 10])
def test_head_tail_and_count_are_right_however_the_bytes_arrive(piece: int, limit: int) -> None:
    for size in range(40):
        data = bytes(range(size))
        capture = Capture(limit)
        for at in range(0, size, piece):
            capture.add(data[at : at + piece])
        head, tail = capture.parts()
        if size <= limit:
            assert (head + tail, capture.truncated) == (data, False)
        else:
            assert (head, tail) == (data[: limit - limit // 2], data[size - limit // 2 :])
            assert (capture.truncated, capture.total) == (True, size)


def test_a_flood_holds_little_memory() -> None:
    capture = Capture(1000)
    for _ in range(1000):
        capture.add(b"x" * 4096)
    assert len(capture._head) + len(capture._tail) <= 2000
    assert capture.total == 4_096_000


def test_one_stream_alone_is_not_stored_twice() -> None:
    output = Output(100)
    output.add("stdout", b"a")
    output.add("stdout", b"b")
    assert output.both is None


def test_both_streams_together_come_in_the_order_of_arrival() -> None:
    output = Output(100)
    for stream, chunk in (("stdout", b"1"), ("stdout", b"2"), ("stderr", b"3"), ("stdout", b"4")):
        output.add(stream, chunk)
    assert output.both is not None
    assert output.both.parts() == (b"1234", b"")


def test_a_second_stream_after_a_truncated_first_one_keeps_head_tail_and_true_size() -> None:
    output = Output(10)
    output.add("stdout", b"abcdefghijklmnopqrstuvwxyz")
    output.add("stderr", b"ERR")
    assert output.both is not None
    assert output.both.parts() == (b"abcde", b"yzERR")
    assert (output.both.total, output.both.truncated) == (29, True)
