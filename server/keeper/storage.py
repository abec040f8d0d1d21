"""Where a sandbox keeps things on this host: the directory with its guest's socket, and its workspace.

As root the workspace is a directory that belongs to the session's uid. Without root nobody can give
directories away, so the workspace is then a volume of the engine's, which lives and dies with the container.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from server.guest import protocol
from server.instance import Owner
from server.keeper.runtime import RuntimeFailed

_REMOVE_SECONDS = 120


@dataclass(frozen=True)
class Place:
    run_dir: Path
    workspace: Path | None
    cpus_online: Path

    @property
    def address(self) -> str:
        return f"unix:{self.run_dir / protocol.SOCKET_NAME}"


class Storage:
    def __init__(self, root: Path, owner: Owner) -> None:
        self._root = root
        self._owner = owner
        self._privileged = os.geteuid() == 0

    def create(self, sandbox: str, uid: int, secret: bytes, cpus: int) -> Place:
        """Idempotent: what an earlier attempt left is used."""
        home = self._root / sandbox
        run_dir = home / "run"
        self._directory(home, 0o710)
        self._directory(run_dir, 0o2750 if self._privileged else 0o2770)
        secret_file = run_dir / protocol.SECRET_NAME
        secret_file.write_bytes(secret)
        secret_file.chmod(0o640)
        online = home / "cpus"
        online.write_text(f"0-{cpus - 1}\n" if cpus > 1 else "0\n")
        online.chmod(0o644)
        return Place(run_dir, self._workspace(home, uid), online)

    def delete(self, sandbox: str) -> None:
        """The tree is hostile (depth, names, links); its sandbox is dead by now, so nothing moves in it.

        `rm` neither recurses on a stack of ours nor follows links nor leaves the filesystem.
        """
        home = self._root / sandbox
        if home.exists():
            command = ["rm", "-rf", "--one-file-system", "--", str(home)]
            try:
                subprocess.run(command, check=True, timeout=_REMOVE_SECONDS, capture_output=True)
            except subprocess.SubprocessError as exc:
                raise RuntimeFailed("The sandbox's files could not be removed yet.", str(exc)) from exc

    def list(self) -> Iterable[str]:
        return [entry.name for entry in os.scandir(self._root) if entry.is_dir(follow_symlinks=False)]

    def _workspace(self, home: Path, uid: int) -> Path | None:
        if not self._privileged:
            return None
        workspace = home / "workspace"
        workspace.mkdir(exist_ok=True)
        os.chown(workspace, uid, uid)
        workspace.chmod(0o700)
        return workspace

    def _directory(self, path: Path, mode: int) -> None:
        path.mkdir(exist_ok=True)
        if self._privileged:
            os.chown(path, 0, self._owner.gid)
        path.chmod(mode)
