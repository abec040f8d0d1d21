"""Which volumes this host can have: on btrfs, on plain directories, or none.

btrfs is what the operator has mounted at <state>/volumes, or a file that we make, fill with it and mount. The
file is allocated in full, so that a full disk of the host's never hurts a workspace, nor the other way round.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from dataclasses import dataclass

from server.config import BadConfig, Config
from server.keeper import mounts
from server.keeper.volumes import Volumes
from server.keeper.volumes.on_btrfs import BtrfsVolumes
from server.keeper.volumes.on_directories import DirectoryVolumes

_DIRECTORIES = "directories"
_GIB = 1 << 30
_LEAST = _GIB
_MOST = 64 * _GIB
_PART = 4  # of what is free on the disk, one in so many
_COMMAND_SECONDS = 120
# With discard the file would get holes again. What was deleted counts until a commit: by default for 30 s.
_OPTIONS = "loop,nosuid,nodev,noatime,nodiscard,commit=5"

_log = logging.getLogger("sandbox.volumes")


@dataclass(frozen=True)
class Choice:
    """`volumes` is None where workspaces can only be the engine's; `concern`: what to tell the operator."""

    volumes: Volumes | None
    concern: str | None


def choose(config: Config) -> Choice:
    if os.geteuid() != 0:
        return Choice(
            None, "the keeper does not run as root: disk limits are soft, and there are no names or snapshots"
        )
    try:
        mounts.share(config.sandboxes_dir)
    except OSError as exc:
        return Choice(
            None, f"the keeper may not mount ({exc.strerror}): disk limits are soft; no names or snapshots"
        )
    before = _remembered(config)
    if config.storage == "btrfs" and before != _DIRECTORIES:
        try:
            return _on_btrfs(config, before)
        except (OSError, subprocess.SubprocessError) as exc:
            _log.warning("no btrfs: %s", _words(exc))
            reason = f"btrfs cannot be used here ({_words(exc)[:200]})"
    else:
        reason = (
            "this installation began without it" if config.storage == "btrfs" else "SANDBOX_STORAGE says so"
        )
    if before not in (None, _DIRECTORIES):
        raise BadConfig(
            f"the workspaces of this installation are on a btrfs, which is not to be used now: {reason}. "
            f"Put that right; or, to begin with none, remove {config.volumes_dir}* and {config.storage_note}"
        )
    config.storage_note.write_text(_DIRECTORIES)
    return Choice(DirectoryVolumes(config.volumes_dir), f"no btrfs ({reason}): disk limits are soft")


def _remembered(config: Config) -> str | None:
    """Where volumes were before. Others in their place would be empty, and the old ones swept later on."""
    try:
        return config.storage_note.read_text()
    except FileNotFoundError:
        return None


def release(config: Config) -> None:
    """Unmount what `choose` mounted."""
    for place in (config.sandboxes_dir, config.volumes_dir):
        for mounted in reversed(mounts.below(place)):
            mounts.detach(mounted)


def _on_btrfs(config: Config, before: str | None) -> Choice:
    if mounts.filesystem_of(config.volumes_dir) is None:
        if not config.storage_image.exists():
            if before is not None:
                raise OSError(f"nothing is mounted at {config.volumes_dir}")
            _make_image(config)
        _run("mount", "-t", "btrfs", "-o", _OPTIONS, str(config.storage_image), str(config.volumes_dir))
    config.volumes_dir.chmod(0o700)
    volumes = BtrfsVolumes(config.volumes_dir)
    if before not in (None, volumes.id):
        raise OSError(f"another filesystem than before is mounted at {config.volumes_dir}")
    config.storage_note.write_text(volumes.id)
    if volumes.quotas != "simple":
        _log.warning("full btrfs quotas: deleting many copies will cost CPU; kernel 6.7 has simple ones")
    return Choice(volumes, None)


def _make_image(config: Config) -> None:
    """Under another name until it is whole: a crash leaves a draft, which the next start makes anew."""
    draft = config.storage_image.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    size = config.storage_size or _fitting(shutil.disk_usage(config.state).free)
    _log.info("making the store for workspaces", extra={"fields": {"bytes": size}})
    try:
        draft.touch(mode=0o600)
        _run("fallocate", "--length", str(size), str(draft))
        _run("mkfs.btrfs", "--quiet", "--nodiscard", str(draft))
    except (OSError, subprocess.SubprocessError):
        draft.unlink()
        raise
    os.rename(draft, config.storage_image)


def _fitting(free: int) -> int:
    size = min(_MOST, free // _PART)
    if size < _LEAST:
        raise OSError(f"the disk has {free >> 20} MiB free, at least {_PART * _LEAST >> 20} are needed")
    return size


def _run(*command: str) -> None:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    environment = {**os.environ, "PATH": path}
    subprocess.run(command, check=True, timeout=_COMMAND_SECONDS, capture_output=True, env=environment)


def _words(exc: Exception) -> str:
    told = getattr(exc, "stderr", None) or b""
    return " ".join(told.decode("utf-8", "replace").split()) or str(exc)
