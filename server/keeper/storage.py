"""Where a sandbox has things on this host: the directory with its guest's socket, the places to mount at.

A sandbox is started with an empty /workspace and /data. What a session has there is mounted over them when
it gets the sandbox, and appears inside: a warm sandbox can so be given any volume. Without root nobody can
mount, and the workspace is a volume of the engine's, which lives and dies with the container.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from server.guest import protocol
from server.instance import Owner
from server.keeper import mounts
from server.keeper.machine import write_machine
from server.keeper.names import component, identifier, is_identifier
from server.keeper.runtime import RuntimeFailed
from server.keeper.volumes import FILES, OWNER, Volumes, kept
from server.keeper.volumes.on_directories import remove_tree

_VOLUME = "volume"
_PAUSED = "paused"


@dataclass(frozen=True)
class Place:
    run_dir: Path
    workspace: Path | None
    data: Path | None
    cpus_online: Path
    machine: Path

    @property
    def address(self) -> str:
        return f"unix:{self.run_dir / protocol.SOCKET_NAME}"


@dataclass(frozen=True)
class Furniture:
    """What a session's sandbox is given: a volume, datasets by name, and what its shell was like before."""

    volume: str | None = None
    datasets: dict[str, Path] = field(default_factory=dict)
    shell: bytes = b""


class Storage:
    def __init__(self, root: Path, owner: Owner, volumes: Volumes | None) -> None:
        self._root = root
        self._owner = owner
        self._volumes = volumes
        self._privileged = os.geteuid() == 0
        self._users: dict[str, int] = {}
        self._lock = threading.Lock()

    def create(
        self, sandbox: str, uid: int, secret: bytes, cpus: int, memory: int, made_by_root: bool = False
    ) -> Place:
        """Idempotent: what an earlier attempt left is used.

        `made_by_root`: whoever is behind the sandbox makes files as root, and then gives them to the user.
        """
        home = self._home(sandbox)
        run_dir = home / "run"
        self._directory(home, 0o710)
        self._directory(run_dir, 0o2750 if self._privileged else 0o2770)
        secret_file = run_dir / protocol.SECRET_NAME
        secret_file.write_bytes(secret)
        secret_file.chmod(0o640)
        online = home / "cpus"
        online.write_text(f"0-{cpus - 1}\n" if cpus > 1 else "0\n")
        online.chmod(0o644)
        write_machine(home / "machine", cpus, memory)
        if self._volumes is None:
            return Place(run_dir, None, None, online, home / "machine")
        for name in ("workspace", "data"):
            (home / name).mkdir(mode=0o755, exist_ok=True)
        self._keep_users(sandbox, mounts.user_namespace({OWNER: uid, **({0: 0} if made_by_root else {})}))
        return Place(run_dir, home / "workspace", home / "data", online, home / "machine")

    def furnish(self, sandbox: str, furniture: Furniture, for_good: bool = True) -> tuple[int, ...] | None:
        """Mount what a session has. Device and inode by which its sandbox can know the workspace again.

        If it is not for good, something else may be put in its place later.
        """
        if self._volumes is None or furniture.volume is None:
            return None
        home, files = self._home(sandbox), self._volumes.path(furniture.volume) / FILES
        datasets = {component(name): source for name, source in furniture.datasets.items()}
        (home / _VOLUME).write_text(furniture.volume)
        try:
            mounts.detach(home / "workspace")
            mounts.attach(files, home / "workspace", users=self._users[sandbox])
            for name, source in datasets.items():
                _mount_dataset(source, home / "data" / name)
            return files.stat().st_dev, files.stat().st_ino
        except OSError as exc:
            raise RuntimeFailed("The workspace could not be mounted.", str(exc)) from exc
        finally:
            if for_good:
                self.settle(sandbox)

    def settle(self, sandbox: str) -> None:
        """What is mounted there stays."""
        self._keep_users(sandbox, None)

    def socket_of(self, sandbox: str) -> Path:
        return self._home(sandbox) / "run" / protocol.SOCKET_NAME

    def address_of(self, sandbox: str) -> str:
        return f"unix:{self.socket_of(sandbox)}"

    def volume_of(self, sandbox: str) -> str | None:
        try:
            return (self._home(sandbox) / _VOLUME).read_text() or None
        except OSError:
            return None

    def note_pause(self, sandbox: str) -> None:
        """We are about to pause it: if we die, the next keeper knows that it was us."""
        (self._home(sandbox) / _PAUSED).touch()

    def forget_pause(self, sandbox: str) -> None:
        (self._home(sandbox) / _PAUSED).unlink(missing_ok=True)

    def is_pause_ours(self, sandbox: str) -> bool:
        return (self._home(sandbox) / _PAUSED).exists()

    def holders(self, volume: str) -> list[str]:
        """Sandboxes that have the volume."""
        return [sandbox for sandbox in self.list() if self.volume_of(sandbox) == volume]

    def keep_shell(self, volume: str, state: bytes) -> None:
        """Beside the files, where the sandbox does not see it; what does not fit is not kept."""
        if self._volumes is None:
            return
        kept.write(self._volumes.path(volume), state if len(state) <= protocol.LONGEST_DESCRIPTION else b"")

    def settle_shell(self, volume: str) -> bool:
        """Whether something is kept, and will be there whatever happens to the host."""
        return self._volumes is not None and kept.settle(self._volumes.path(volume))

    def shell_of(self, volume: str) -> bytes:
        return b"" if self._volumes is None else kept.read(self._volumes.path(volume))

    def delete(self, sandbox: str) -> None:
        """Nothing may be mounted below when the tree is removed: it would go, too."""
        home = self._home(sandbox)
        self._keep_users(sandbox, None)
        try:
            for mounted in reversed(mounts.below(home)):
                mounts.detach(mounted)
            left = mounts.below(home)
        except OSError as exc:
            raise RuntimeFailed("The sandbox's mounts could not be removed yet.", str(exc)) from exc
        if left:
            raise RuntimeFailed("The sandbox's mounts could not be removed yet.", str(left[0]))
        remove_tree(home)

    def list(self) -> Iterable[str]:
        found = [entry.name for entry in os.scandir(self._root) if entry.is_dir(follow_symlinks=False)]
        return [name for name in found if is_identifier(name)]

    def _home(self, sandbox: str) -> Path:
        """The way to all that a sandbox has here."""
        return self._root / identifier(sandbox)

    def _keep_users(self, sandbox: str, users: int | None) -> None:
        """The user namespace waits for the mount that needs it: making one costs more than mounting."""
        with self._lock:
            old = self._users.pop(sandbox, None)
            if users is not None:
                self._users[sandbox] = users
        if old is not None:
            os.close(old)

    def _directory(self, path: Path, mode: int) -> None:
        path.mkdir(exist_ok=True)
        if self._privileged:
            os.chown(path, 0, self._owner.gid)
        path.chmod(mode)


def _mount_dataset(source: Path, target: Path) -> None:
    if stat.S_ISDIR(os.lstat(source).st_mode):
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    mounts.attach(source, target, read_only=True)
