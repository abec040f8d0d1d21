"""The state directory: who may read and write what; and whether the web's user is one of its own."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from server.config import Config
from server.instance import Owner
from server.keeper.doctor import CRITICAL, MAJOR, Finding, judged

_SOCKETS = ("/run/docker.sock", "/var/run/docker.sock")


@dataclass(frozen=True)
class Right:
    """The most that a place may allow, and whose it must be."""

    path: str
    mode: int
    owner: str  # web or keeper
    severity: str


RIGHTS = (
    Right("", 0o711, "keeper", MAJOR),
    Right("instance", 0o640, "keeper", CRITICAL),
    Right("store", 0o700, "web", CRITICAL),
    Right("store/store.db", 0o600, "web", CRITICAL),
    Right("uploads", 0o700, "web", CRITICAL),
    Right("run", 0o750, "keeper", CRITICAL),
    Right("run/keeper.sock", 0o660, "keeper", CRITICAL),
    Right("sandboxes", 0o710, "keeper", MAJOR),
    Right("volumes", 0o700, "keeper", CRITICAL),
    Right("volumes.btrfs", 0o600, "keeper", CRITICAL),
    Right("env", 0o640, "keeper", MAJOR),
)


def rights(config: Config, web: Owner, keeper: int) -> Iterator[Finding]:
    for right in RIGHTS:
        try:
            found = os.lstat(config.state / right.path)
        except FileNotFoundError:
            continue  # made when it is needed
        yield _judge(config.state, right, found, web.uid if right.owner == "web" else keeper)


def _judge(state: Path, right: Right, found: os.stat_result, owner: int) -> Finding:
    mode = stat.S_IMODE(found.st_mode) & 0o777
    place = state / right.path
    return judged(
        f"state.{right.path.replace('/', '.') or 'directory'}",
        not mode & ~right.mode and found.st_uid == owner,
        right.severity,
        f"mode {mode:04o}, uid {found.st_uid}",
        f"mode {right.mode:04o} at most, uid {owner}",
        f"chmod {right.mode:04o} {place} && chown {owner} {place}",
    )


def web_user(web: Owner, keeper: int) -> Iterator[Finding]:
    apart = web.uid not in (0, keeper)
    yield judged(
        "web.user",
        apart,
        MAJOR,
        _name(web.uid) if apart else "web and keeper are one user: whoever takes over the web has the engine",
        "a user of its own, without rights",
        "run the keeper as root and set SANDBOX_WEB_USER, as ./quickstart.sh and the units do",
    )
    if not apart:
        return
    reachable = next((path for path in _SOCKETS if _may_use(web, path)), None)
    yield judged(
        "web.engine",
        reachable is None,
        CRITICAL,
        "cannot reach the engine" if reachable is None else f"may use {reachable}, which is root",
        "cannot reach the engine",
        f"gpasswd --delete {_name(web.uid)} docker, and restart the web",
    )


def _may_use(web: Owner, path: str) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    name = _name(web.uid)
    groups = {web.gid, *(group.gr_gid for group in grp.getgrall() if name in group.gr_mem)}
    write = 0o200 if found.st_uid == web.uid else 0o020 if found.st_gid in groups else 0o002
    return bool(found.st_mode & write)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
