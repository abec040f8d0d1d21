"""Bytes that may be compressed, made plain a bounded piece at a time, however much is in them."""

from __future__ import annotations

import bz2
import lzma
import os
import zlib
from typing import Callable, Iterator, Union

from .members import broken

_PIECE = 256 << 10
_XZ_MEMORY = 64 << 20

Engine = Union[bz2.BZ2Decompressor, lzma.LZMADecompressor]


def pieces_of(file: int) -> Iterator[bytes]:
    while True:
        piece = os.read(file, _PIECE)
        if not piece:
            return
        yield piece


def plain(pieces: Iterator[bytes], gzip_only: bool) -> Iterator[bytes]:
    """The first bytes tell what it is compressed with, if with anything."""
    first = b""
    while len(first) < 6:
        piece = next(pieces, None)
        if piece is None:
            break
        first += piece
    rest = _again(first, pieces)
    if first.startswith(b"\x1f\x8b"):
        return _gunzipped(rest)
    if gzip_only:
        raise broken()
    if first.startswith(b"BZh"):
        return _decompressed(rest, bz2.BZ2Decompressor)
    if first.startswith(b"\xfd7zXZ\0"):
        return _decompressed(rest, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY))
    return rest


def inflated(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """A bare deflated stream, as zips hold them. What follows its end is not looked at."""
    engine = zlib.decompressobj(-15)
    try:
        for piece in pieces:
            while piece and not engine.eof:
                yield engine.decompress(piece, _PIECE)
                piece = engine.unconsumed_tail
        yield engine.flush()
    except zlib.error as exc:
        raise broken() from exc
    if not engine.eof:
        raise broken()


def _gunzipped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Several compressed streams may follow each other, and zeros the last one."""
    engine = zlib.decompressobj(31)
    try:
        for piece in pieces:
            while piece:
                if engine.eof:
                    piece = piece.lstrip(b"\0")
                    if not piece:
                        break
                    engine = zlib.decompressobj(31)
                yield engine.decompress(piece, _PIECE)
                piece = engine.unused_data if engine.eof else engine.unconsumed_tail
        yield engine.flush()
    except zlib.error as exc:
        raise broken() from exc
    if not engine.eof:
        raise broken()


def _decompressed(pieces: Iterator[bytes], new: Callable[[], Engine]) -> Iterator[bytes]:
    engine = new()
    try:
        for piece in pieces:
            while piece or not (engine.eof or engine.needs_input):
                if engine.eof:
                    piece = piece.lstrip(b"\0")
                    if not piece:
                        break
                    engine = new()
                yield engine.decompress(piece, _PIECE)
                piece = engine.unused_data if engine.eof else b""
    except (lzma.LZMAError, OSError, ValueError) as exc:
        raise broken() from exc
    if not engine.eof:
        raise broken()


def _again(first: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from pieces
