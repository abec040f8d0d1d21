"""What others call things, before it becomes part of a path on this host or of a call to the engine.

The store is the web's, which faces the internet, and the keeper is root: a row says which of our things is
meant, never where it lies.
"""

from __future__ import annotations

import re

from server.keeper.runtime import RuntimeFailed

_IDENTIFIER = re.compile(r"[0-9a-f]{32}")
_LONGEST_COMPONENT = 255


class BadName(RuntimeFailed):
    """No name that we ever gave: somebody has altered a row, or a request."""

    def __init__(self, name: object) -> None:
        super().__init__("The store names something that cannot be there.", f"a bad name: {name!r:.100}")


def is_identifier(value: object) -> bool:
    return isinstance(value, str) and _IDENTIFIER.fullmatch(value) is not None


def identifier(value: object) -> str:
    """The id of a sandbox, a volume or a session: hex digits of the right number, or nothing."""
    if not isinstance(value, str) or not is_identifier(value):
        raise BadName(value)
    return value


def is_component(name: str) -> bool:
    """Whether it names something right in a directory, and nothing above or below."""
    return (
        name not in ("", ".", "..")
        and not {"/", "\0"} & set(name)
        and len(name.encode(errors="replace")) <= _LONGEST_COMPONENT
    )


def component(name: str) -> str:
    if not is_component(name):
        raise BadName(name)
    return name
