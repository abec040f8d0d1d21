"""What our scripts share that run as processes of the user: how they are told what to do, and what they say.

They are told by one argument, and answer with lines of JSON on stderr. The user, whose processes they are,
can make them say anything.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Callable, Dict

from .paths import Roots
from .refused import Refused, refusal_of
from .walking import Moved

Said = Dict[str, Any]


def run(work: Callable[[Said], Said]) -> None:
    """All of a script: `work` gets what was asked, and returns what to say at the end."""
    asked = json.loads(sys.argv[1])
    try:
        said = {"ok": True, **work(asked)}
    except Refused as exc:
        said = {"ok": False, "code": exc.code, **exc.facts}
    except BrokenPipeError:
        said = {"ok": False, "code": "hung_up"}
    except OSError as exc:
        said = {"ok": False, "code": refusal_of(exc).code}
    except Moved:
        said = {"ok": False, "code": "file_changed"}
    except MemoryError:
        said = {"ok": False, "code": "out_of_memory"}
    say(said)
    os._exit(0 if said["ok"] else 1)  # nothing is left to be flushed, to wherever it would go


def say(said: Said) -> None:
    os.write(2, json.dumps(said).encode() + b"\n")


def roots_of(asked: Said) -> Roots:
    home, *others = map(raw, asked["roots"])
    return Roots(home, tuple(others))


def path_of(asked: Said) -> bytes:
    return raw(asked["path"])


def raw(text: str) -> bytes:
    """A path travels as text with a character for each byte, whatever the bytes are."""
    return text.encode("latin-1")


def told(path: bytes) -> str:
    """The inverse."""
    return path.decode("latin-1")
