"""An nginx configuration as nginx reads it: directives with their blocks, included files in their place."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_TOKEN = re.compile(
    r"""\s+|\#[^\n]*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[{};]|(?:\\.|\$\{[^}]*\}|[^\s{};])+"""
)
_MOST_BYTES = 1 << 20
_MOST_FILES = 200


class Unreadable(Exception):
    """Not a configuration that can be understood."""


@dataclass(frozen=True)
class Directive:
    name: str
    words: tuple[str, ...]
    block: list[Directive] = field(default_factory=list)


def read(path: Path) -> list[Directive]:
    return _read(path, path.parent, [0])


def parse(text: str) -> list[Directive]:
    tokens = (token for token in _TOKEN.findall(text) if not token.isspace() and token[0] != "#")
    found, closed = _block(tokens)
    if closed:
        raise Unreadable("a } too many")
    return found


def _read(path: Path, base: Path, count: list[int]) -> list[Directive]:
    count[0] += 1
    if count[0] > _MOST_FILES or path.stat().st_size > _MOST_BYTES:
        raise Unreadable("too much of it")
    return _expanded(parse(path.read_text(errors="replace")), base, count)


def _expanded(directives: list[Directive], base: Path, count: list[int]) -> list[Directive]:
    found: list[Directive] = []
    for directive in directives:
        if directive.name == "include" and directive.words:
            for name in sorted(glob.glob(str(base / directive.words[0]))):
                found += _read(Path(name), base, count)
        else:
            block = _expanded(directive.block, base, count)
            found.append(Directive(directive.name, directive.words, block))
    return found


def _block(tokens: Iterator[str]) -> tuple[list[Directive], bool]:
    """Up to the brace that ends it, if one does."""
    found: list[Directive] = []
    words: list[str] = []
    for token in tokens:
        if token == "}":
            return found, True
        if token not in ("{", ";"):
            words.append(token[1:-1] if token[0] in "\"'" else token)
        elif not words:
            raise Unreadable("a block without a name")
        else:
            inner, closed = _block(tokens) if token == "{" else ([], True)
            if not closed:
                raise Unreadable("a block without an end")
            found.append(Directive(words[0], tuple(words[1:]), inner))
            words = []
    return found, False
