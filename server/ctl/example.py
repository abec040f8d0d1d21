"""`sandboxctl example`: deploy/env.example, with every setting that there is. A test compares the two."""

from __future__ import annotations

import argparse
from dataclasses import fields

from server.config import Config
from server.ctl.words import Commands

_HEAD = """\
# Settings for both units: copy to /etc/sandbox-server.env (root:root, mode 0640). A name that is not in
# docs/configuration.md stops the start. No secrets belong here: keys live, hashed, in the store.
# Made by: sandboxctl example

# Where things are, and who they belong to. State directory and user are named in the units too.
SANDBOX_STATE_DIR=/var/lib/sandbox-server
SANDBOX_WEB_USER=sandbox-web
SANDBOX_BIND=127.0.0.1:5000

# The names under which clients reach the server, through nginx or directly: put the public one first.
SANDBOX_HOSTS=sandbox.example.org,localhost,127.0.0.1,[::1]

# Everything else, with its default.
"""
_SAID = {"state_dir", "web_user", "bind", "hosts"}


def add_to(commands: Commands) -> None:
    meaning = "print an example of the units' environment file, with every setting"
    commands.add_parser("example", help=meaning, description=meaning).set_defaults(run=_example)


def _example(_: Config, arguments: argparse.Namespace) -> None:
    print(text(), end="")


def text() -> str:
    lines = []
    for setting in fields(Config):
        if setting.name not in _SAID:
            lines.append(f"# {setting.metadata['meaning']}:")
            lines.append(f"#SANDBOX_{setting.name.upper()}={setting.metadata['default']}")
    return _HEAD + "\n".join(lines) + "\n"
