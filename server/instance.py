"""This installation: its id, the secret that guests' secrets come from, and the state directory's layout.

The web workers run as another user than the keeper. What both need is shared by that user's group; the
store belongs to the web user alone, which root may use as well.
"""

from __future__ import annotations

import grp
import hashlib
import hmac
import os
import pwd
import secrets
from dataclasses import dataclass
from pathlib import Path

from server.as_owner import open_plain
from server.config import BadConfig, Config


@dataclass(frozen=True)
class Owner:
    """Who the web workers are."""

    uid: int
    gid: int


@dataclass(frozen=True)
class Instance:
    id: str
    secret: bytes

    def guest_secret(self, sandbox: str) -> bytes:
        """What the guest of this sandbox must prove to know. Derived, so it is stored nowhere on our side."""
        return hmac.new(self.secret, sandbox.encode(), hashlib.sha256).hexdigest().encode()

    @property
    def audit_key(self) -> bytes:
        return hmac.digest(self.secret, b"audit", "sha256")


def web_owner(config: Config) -> Owner:
    if not config.web_user or os.geteuid() != 0:
        return Owner(os.geteuid(), os.getegid())
    try:
        user = pwd.getpwnam(config.web_user)
    except KeyError as exc:
        raise BadConfig(f"SANDBOX_WEB_USER={config.web_user!r}: no such user; create it first") from exc
    return Owner(user.pw_uid, grp.getgrgid(user.pw_gid).gr_gid)


def prepare(config: Config) -> Instance:
    """Make the state directory, or put its owners right. Doing it again changes nothing."""
    owner = web_owner(config)
    state = config.state
    _check_way(state, owner)
    _directory(state, 0o711, -1, -1)
    _directory(config.store_path.parent, 0o700, owner.uid, owner.gid)
    _directory(config.uploads_dir, 0o700, owner.uid, owner.gid)
    _directory(config.keeper_socket.parent, 0o750, -1, owner.gid)
    _directory(config.sandboxes_dir, 0o710, -1, owner.gid)
    _directory(config.volumes_dir, 0o700, -1, -1)
    _store_file(config.store_path, owner)
    _store_file(config.audit_path, owner)
    _secret_file(state / "instance", owner.gid)
    return load(config)


def _check_way(state: Path, owner: Owner) -> None:
    """The web's user must be able to get there: in somebody's home, for instance, it is not."""
    if owner.uid in (0, os.geteuid()):
        return
    for place in (parent for parent in state.parents if parent.exists()):
        found = place.stat()
        enters = 0o100 if found.st_uid == owner.uid else 0o010 if found.st_gid == owner.gid else 0o001
        if not found.st_mode & enters:
            raise BadConfig(
                f"SANDBOX_STATE_DIR={state}: the web's user may not enter {place}; "
                f"use another directory, or allow it with chmod o+x {place}"
            )


def load(config: Config) -> Instance:
    path = config.state / "instance"
    try:
        name, secret = path.read_text().split()
    except FileNotFoundError as exc:
        raise BadConfig(f"{config.state} is not set up: run 'python -m server.ctl init' first") from exc
    return Instance(name, bytes.fromhex(secret))


def _directory(path: Path, mode: int, uid: int, gid: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(path, uid, gid)
    path.chmod(mode)


def _store_file(path: Path, owner: Owner) -> None:
    """Made empty with the right owner: SQLite, when root opens it, gives its other files the same one."""
    try:
        file = open_plain(path, os.O_CREAT)
    except OSError as exc:
        raise BadConfig(f"{path} cannot be used ({exc.strerror}): look who has put it there") from exc
    try:
        if os.geteuid() == 0:
            os.fchown(file, owner.uid, owner.gid)
    finally:
        os.close(file)


def _secret_file(path: Path, gid: int) -> None:
    """Written under another name and linked: two starts at once agree on one."""
    draft = path.with_name(f"instance.{secrets.token_hex(4)}")
    draft.touch(0o600)
    try:
        draft.write_text(f"{secrets.token_hex(8)} {secrets.token_hex(32)}\n")
        _give_to_keeper(draft, gid)
        os.link(draft, path)
    except FileExistsError:
        _give_to_keeper(path, gid)
    finally:
        draft.unlink()


def _give_to_keeper(path: Path, gid: int) -> None:
    """The web's group may read it."""
    if os.geteuid() == 0:
        os.chown(path, 0, gid, follow_symlinks=False)
    path.chmod(0o640)
