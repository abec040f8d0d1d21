"""What an operator changes by command is in the audit too, in the installation's own chain."""

from __future__ import annotations

import argparse
import getpass
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from server import instance as installation
from server.audit.chain import INSTANCE, Act
from server.audit.ledger import Ledger, LedgerFailed
from server.audit.witness import Witness
from server.config import BadConfig, Config
from server.errors import SandboxError

_TOLD = ("tenant", "name", "admin", "scope", "expires_in", "grace", "limit", "new_key_id")
_ID_DIGITS = 16

_log = logging.getLogger("sandbox.audit")


@contextmanager
def recorded(config: Config, arguments: argparse.Namespace) -> Iterator[None]:
    """The command's record, written when its outcome is known. One that cannot be written stops nobody."""
    if getattr(arguments, "act", None) is None:
        yield
        return
    code: str | None = "interrupted"
    try:
        yield
        code = None
    except SandboxError as exc:
        code = exc.code
        raise
    finally:
        _record(config, arguments, code)


def _record(config: Config, arguments: argparse.Namespace, code: str | None) -> None:
    said = vars(arguments)
    details = {name: said[name] for name in _TOLD if said.get(name) is not None}
    if "id" in said:  # it may be the whole key
        details["key_id"] = str(said["id"]).removeprefix("e2b_")[:_ID_DIGITS]
    outcome = "done" if code is None else "refused"
    act = Act(time.time(), arguments.act, outcome, f"operator:{_operator()}", code=code, details=details)
    try:
        ledger = Ledger(config.audit_path, installation.load(config).audit_key)
    except BadConfig:  # there is no installation that anything was done to
        return
    try:
        ledger.append(INSTANCE, [act])
    except LedgerFailed as exc:
        _log.warning("not recorded: %s", exc)
    finally:
        ledger.close()


def witness(config: Config, anew: bool = False) -> None:
    """Note how the audit stands; `anew` where an older one was put in its place on purpose."""
    ledger = Ledger(config.audit_path, installation.load(config).audit_key)
    try:
        seen = Witness(config.state, ledger)
        if anew:
            seen.forget()
        seen.keep()
    except LedgerFailed as exc:
        _log.warning("not witnessed: %s", exc)
    finally:
        ledger.close()


def _operator() -> str:
    """Who has typed it, also where it was typed with sudo."""
    return os.environ.get("SUDO_USER") or _user()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such user: a container, for instance
        return str(os.geteuid())
