"""What a session's main shell is like: its directory and its variables, to be found again in another sandbox.

It is the user's own shell that tells them, and the user's own shell that is told: nobody else acts on a word
of it. Where the session itself goes on in the other sandbox, what it has run is told with it.
"""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Mapping, NamedTuple

from . import recollection
from .capture import Output
from .executions import Executions
from .ground import Ground
from .protocol import LONGEST_DESCRIPTION, Body
from .shells import MAIN, Shells
from .work import Work

_LARGEST = 256 << 10
_PATIENCE = 1.0
_SECONDS = 10.0


class State(NamedTuple):
    """`exports` are commands that set the shell's variables, `env` what every program of the session gets."""

    cwd: str = ""
    exports: str = ""
    env: Mapping[str, str] = MappingProxyType({})
    ran: dict[str, Any] | None = None


def describe(shells: Shells, ground: Ground, executions: Executions | None) -> bytes:
    """While the shell is busy, and cannot be asked, only with what the session itself was given.

    With what was run, if `executions` are given, as far as there is room for it.
    """
    state = _asked(shells, ground)
    for ran in () if executions is None else recollection.recollections(executions):
        packed = _packed(state._replace(ran=ran))
        if len(packed) <= LONGEST_DESCRIPTION:
            return packed
    return _packed(state)


def _asked(shells: Shells, ground: Ground) -> State:
    output = Output(_LARGEST)
    told = shells.aside("bash", MAIN, Work("\\builtin export -p", _SECONDS), output, _PATIENCE)
    listing = output.streams["stdout"]
    if told is None or told.exit_code != 0:
        return State(env=ground.env)
    if listing.truncated:
        return State(told.cwd, env=ground.env)
    exports = b"".join(listing.parts()).decode("utf-8", "replace")
    return State(told.cwd, exports, ground.env)


def put_back(state: Body, shells: Shells, ground: Ground, executions: Executions) -> None:
    """What this session was given itself is stronger than what the other one had."""
    was = _unpacked(state)
    if was.ran is not None:
        with suppress(ValueError, TypeError, KeyError, AttributeError):  # as good as nothing, too
            recollection.put_back(was.ran, executions)
    changed = {name: value for name, value in ground.env.items() if was.env.get(name) != value}
    ground.env.update({**was.env, **ground.env})
    home, cwd = shlex.quote(ground.home), shlex.quote(was.cwd or ground.home)
    told = changed if was.exports else ground.env
    settings = "".join(f"\\builtin export {name}={shlex.quote(value)}\n" for name, value in told.items())
    orders = f"{was.exports}\n{settings}\\builtin cd -- {cwd} 2>/dev/null || \\builtin cd -- {home}\n"
    shells.aside("bash", MAIN, Work(orders, _SECONDS), Output(0), _SECONDS)


def _packed(state: State) -> bytes:
    return json.dumps({**state._asdict(), "env": dict(state.env)}).encode()


def _unpacked(raw: Body) -> State:
    """It has been through other hands: what makes no sense is as good as nothing."""
    try:
        return State(**json.loads(raw.decode()))
    except (ValueError, TypeError, RecursionError):
        return State()
