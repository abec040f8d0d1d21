"""Frames: what is sent arrives, and what is no frame is refused before it costs anything."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from server.guest import protocol

SMALL = protocol.Limits(head=100, body=100)
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(5)
        theirs.settimeout(5)
        yield ours, theirs


@pytest.mark.parametrize("size", [0, 1, 1 << 20, 3 << 20])
def test_a_frame_arrives_as_it_was_sent(pair: Pair, size: int) -> None:
    head, body = {"verb": "run", "text": "é\n\0☃", "n": [1, None]}, bytes(size)
    sender = threading.Thread(target=protocol.send, args=(pair[0], head, body))
    sender.start()
    assert protocol.receive(pair[1], protocol.TO_GUEST) == (head, body)
    sender.join(5)


def test_frames_follow_each_other(pair: Pair) -> None:
    for number in range(3):
        protocol.send(pair[0], {"n": number}, b"x" * number)
        assert protocol.receive(pair[1], SMALL) == ({"n": number}, b"x" * number)


def test_a_peer_that_speaks_out_of_turn_is_refused(pair: Pair) -> None:
    protocol.send(pair[0], {"n": 1})
    protocol.send(pair[0], {"n": 2})
    with pytest.raises(protocol.FrameError):
        protocol.receive(pair[1], SMALL)


def test_half_a_character_in_a_text_does_not_break_the_wire(pair: Pair) -> None:
    protocol.send(pair[0], {"text": "\ud800"})
    assert protocol.receive(pair[1], SMALL)[0] == {"text": "?"}


def test_the_end_between_two_frames_is_an_end(pair: Pair) -> None:
    pair[0].close()
    with pytest.raises(EOFError):
        protocol.receive(pair[1], SMALL)


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack(">II", 101, 0),
        struct.pack(">II", 2, 101) + b"{}",
        struct.pack(">II", 2, 0) + b"{",
        struct.pack(">I", 2),
        struct.pack(">II", 2, 0) + b"[]",
        struct.pack(">II", 4, 0) + b"\xff\xff\xff\xff",
        struct.pack(">II", 0, 0),
    ],
)
def test_what_is_no_frame_is_refused(pair: Pair, raw: bytes) -> None:
    pair[0].sendall(raw)
    pair[0].close()
    with pytest.raises(protocol.FrameError):
        protocol.receive(pair[1], SMALL)


def test_the_proof_depends_on_secret_and_nonce() -> None:
    proofs = {protocol.prove(secret, nonce) for secret in (b"a", b"b") for nonce in ("1", "2")}
    assert len(proofs) == 4


def test_a_transfer_is_pieces_and_an_end_that_says_how_it_went() -> None:
    here, there = socket.socketpair()
    buffer = bytearray(protocol.PIECE)
    with here, there:
        protocol.send_piece(here, b"one")
        protocol.send_piece(here, memoryview(b"another")[2:])
        protocol.send_end(here, {"ok": True})
        protocol.send(here, {"verb": "next"})
        assert protocol.receive_piece(there, buffer) == 3 and buffer[:3] == b"one"
        assert protocol.receive_piece(there, buffer) == 5 and buffer[:5] == b"other"
        assert protocol.receive_piece(there, buffer) == {"ok": True}
        assert protocol.receive(there, protocol.TO_GUEST)[0] == {"verb": "next"}  # it read no further


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">II", 0, 0),
        struct.pack(">II", 0, protocol.PIECE + 1),
        struct.pack(">II", 1 << 20, 0),
        struct.pack(">II", 2, 1) + b"{}x",
        struct.pack(">II", 0, 10) + b"broken",
        struct.pack(">II", 2, 0) + b"[]",
        b"",
        b"\0\0",
    ],
)
def test_what_is_no_part_of_a_transfer_or_breaks_off_is_an_error(sent: bytes) -> None:
    here, there = socket.socketpair()
    with here, there:
        here.sendall(sent)
        here.shutdown(socket.SHUT_WR)
        with pytest.raises(protocol.FrameError):
            protocol.receive_piece(there, bytearray(protocol.PIECE))
