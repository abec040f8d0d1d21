"""Where a file is, as people write it: SESSION:PATH in a sandbox, anything else here."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from ..client import SandboxClient
from ..errors import ConfigurationError

ONLY = "Where only one\nsession is open :PATH is enough."


@dataclass(frozen=True)
class Place:
    """A path in a session; without a session it is in the only one there is."""

    session: str
    path: str

    def sandbox(self, args: argparse.Namespace) -> SandboxClient:
        return SandboxClient.attach(self.session or only_session(args), **args.server)


def place(text: str) -> Place | None:
    """The place in a sandbox, or None for a path on this machine. ./a:b is one of those."""
    session, colon, path = text.partition(":")
    return Place(session, path or ".") if colon and "/" not in session else None


def remote_place(text: str) -> Place:
    """The same where it must be one in a sandbox."""
    found = place(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not SESSION:PATH")
    return found


def only_session(args: argparse.Namespace) -> str:
    found = SandboxClient(**args.server).list_sessions()
    if len(found) != 1:
        raise ConfigurationError(f"{len(found)} sessions are open: say which, as in SESSION:PATH.")
    return found[0].session_id
