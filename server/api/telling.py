"""Results over HTTP: small ones whole, large ones a piece at a time.

A large one is written in its tenant's turns, and a piece only when the one before has been taken: who does
not read costs little memory, and who reads slowly has time for each piece instead of for all of them.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import nullcontext

from flask import Response, jsonify

from server import errors, results
from server.api.transfers import sent, still_authorized
from server.api.turns import Turns
from server.api.wiring import parts, tenant
from server.guest_answers import Answer, Told

_LARGE = 64 << 10
_HURRIED_SECONDS = 30.0


def result(answer: Answer, session_id: str, execution_id: str) -> Response:
    if results.weight(answer) < _LARGE:
        return jsonify(results.as_json(answer, session_id, execution_id))
    return _in_pieces(results.in_pieces(answer, session_id, execution_id), session_id)


def execution(told: Told, session_id: str, asked_again: bool = False) -> Response:
    """With its result if it has one. Who asks again may be refused: what there is can be had later, too."""
    answer = told.answer
    if answer is None or results.weight(answer) < _LARGE:
        return jsonify(results.told_as_json(told, session_id))
    return _in_pieces(results.told_in_pieces(told, answer, session_id), session_id, asked_again)


def whole(answer: Answer, session_id: str, execution_id: str) -> str:
    """For who must have all of it, large or not."""
    pieces = results.in_pieces(answer, session_id, execution_id)
    return b"".join(_chunks(pieces, parts().turns, tenant())).decode()


def text(written: str) -> Response:
    """What was written before."""
    if len(written) < _LARGE:
        return Response(f"{written}\n", mimetype="application/json")  # as `jsonify` ends its answers
    cuts = range(0, len(written), results.PIECE)
    return _in_pieces((written[at : at + results.PIECE] for at in cuts), None)


def _in_pieces(pieces: Iterator[str], session_id: str | None, may_refuse: bool = False) -> Response:
    """It counts as an open stream. Where no place is left for one, what a command came to is still told,
    but to who takes it soon."""
    chunks = _chunks(pieces, parts().turns, tenant())
    try:
        leave = parts().executions.enter_stream(tenant(), session_id)
    except errors.TooManyStreams:
        if may_refuse:
            raise
        leave, chunks = _nothing, _hurried(chunks)
    response = Response(sent(chunks, nullcontext(), still_authorized()), mimetype="application/json")
    response.call_on_close(leave)
    return response


def _chunks(pieces: Iterator[str], turns: Turns, tenant: str) -> Iterator[bytes]:
    while True:
        with turns.taken(tenant, results.PIECE):
            chunk = _next_of(pieces)
        if not chunk:
            return
        yield chunk


def _next_of(pieces: Iterator[str]) -> bytes:
    """As many as make a good one to send."""
    taken, size = [], 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size >= results.PIECE:
            break
    return "".join(taken).encode()


def _hurried(chunks: Iterator[bytes]) -> Iterator[bytes]:
    until = time.monotonic() + _HURRIED_SECONDS
    for chunk in chunks:
        yield chunk
        if time.monotonic() > until:
            raise ConnectionResetError(errno.ECONNRESET, "the peer takes too long")


def _nothing() -> None:
    pass
