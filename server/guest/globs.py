"""Patterns for paths: `*`, `?` and `[...]` within a name, `**` for any number of directories.

A pattern is walked name by name, as a set of the places in it that may come next, and what is matched within
a name is never tried twice. So the worst pattern costs its length times the path's, and a walk knows early
which directories hold nothing for it.
"""

from __future__ import annotations

import fnmatch
import re
from typing import FrozenSet

LONGEST = 1024
_TOKENS = re.compile(r"\[!?\]?[^\]]*\]|\*+|[^*\[]+|\[")

State = FrozenSet[int]


class BadPattern(Exception):
    """It cannot be understood: a range that ends before it begins, for instance."""


class Glob:
    def __init__(self, pattern: str) -> None:
        if len(pattern) > LONGEST:
            raise BadPattern
        names = [name for name in pattern.split("/") if name not in ("", ".")]
        names = [name for name, before in zip(names, ["", *names]) if (name, before) != ("**", "**")]
        self._parts = [None if name == "**" else _compiled(name) for name in names]
        self.start = self._closed({0})

    def step(self, state: State, name: str) -> State:
        """After one more name of the path."""
        following = set()
        for place in state:
            if place == len(self._parts):
                continue
            part = self._parts[place]
            if part is None:
                following.add(place)
            elif part.match(name):
                following.add(place + 1)
        return self._closed(following)

    def accepts(self, state: State) -> bool:
        return len(self._parts) in state

    def matches(self, path: str) -> bool:
        state = self.start
        for name in path.split("/"):
            state = self.step(state, name)
        return self.accepts(state)

    def _closed(self, places: set[int]) -> State:
        """`**` may also stand for no directory at all; it never follows another."""
        beside = {place + 1 for place in places if place < len(self._parts) and self._parts[place] is None}
        return frozenset(places | beside)


def _compiled(name: str) -> re.Pattern[str]:
    """What stands between two stars is looked for once, from the left: a lookahead does not go back."""
    segments = [""]
    for token in _TOKENS.findall(name):
        if token[0] == "*":
            segments.append("")
        else:
            segments[-1] += fnmatch.translate(token)[len("(?s:") : -len(r")\Z")]
    first, *rest = segments
    middle = "".join(f"(?=(?P<s{i}>.*?{one}))(?P=s{i})" for i, one in enumerate(rest[:-1]))
    last = f".*{rest[-1]}" if rest else ""
    try:
        return re.compile(rf"(?s:{first}{middle}{last})\Z")
    except (re.error, OverflowError) as exc:
        raise BadPattern from exc
