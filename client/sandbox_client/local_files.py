"""Files of this machine that appear under their names only when they are whole."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from pathlib import Path
from typing import IO

from .tar_in import Parts, Unpacker

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


class NewFile:
    """A file that is being written beside its destination, and then takes its name."""

    def __init__(self, destination: Path, mode: int) -> None:
        self._destination = Path(os.path.realpath(destination))
        self._temporary: Path | None = None
        self._destination.parent.mkdir(parents=True, exist_ok=True)
        if _is_special(self._destination):  # /dev/null and the like are written to, never replaced
            self._file: IO[bytes] = open(self._destination, "wb", buffering=0)  # noqa: SIM115
            return
        self._temporary = _beside(self._destination)
        descriptor = os.open(self._temporary, NEW_FILE, (mode & 0o777) | 0o600)
        self._file = open(descriptor, "wb", buffering=0)  # noqa: SIM115  # closed by keep or drop

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:  # unbuffered: it may take less than all
            view = view[self._file.write(view) :]

    def keep(self) -> None:
        self._file.close()
        if self._temporary is not None:
            os.replace(self._temporary, self._destination)
            self._temporary = None

    def drop(self) -> None:
        """Remove what was not kept. Fine when it was."""
        with contextlib.suppress(OSError):
            self._file.close()
        if self._temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary)


class NewTree:
    """A directory that is being unpacked beside its destination, and then takes its name."""

    def __init__(self, destination: Path, most_bytes: int | None) -> None:
        self._destination = Path(os.path.realpath(destination))
        self._destination.parent.mkdir(parents=True, exist_ok=True)
        if self._destination.exists() and not self._destination.is_dir():
            raise NotADirectoryError(f"{destination} is there already, and is no directory.")
        self._temporary = _beside(self._destination)
        self._temporary.mkdir(mode=0o700)  # until it is whole nobody else looks in
        self._tree = self._temporary / "tree"
        self._tree.mkdir()
        self.unpacker = Unpacker(str(self._tree), most_bytes)

    def keep(self) -> None:
        self.unpacker.close()
        if not os.path.lexists(self._destination):
            os.rename(self._tree, self._destination)
            return
        _merge(self._tree, self._destination)
        for parts, _ in self.unpacker.links:
            self._check_link(parts)

    def drop(self) -> None:
        """Remove what was not kept. Fine when it was."""
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _check_link(self, parts: Parts) -> None:
        """Links that were in the directory before can make a new one lead outside."""
        path = os.path.join(self._destination, *parts)
        root = str(self._destination)
        if os.path.islink(path) and os.path.commonpath([root, os.path.realpath(path)]) != root:
            os.unlink(path)
            self.unpacker.skip(parts)


def _merge(source: Path, destination: Path) -> None:
    """Move all that is in a directory into another. No link that was there before is followed."""
    with os.scandir(source) as found:
        entries = list(found)
    for entry in entries:
        target = destination / entry.name
        if not entry.is_dir(follow_symlinks=False):
            os.replace(entry.path, target)
        elif not os.path.lexists(target):
            os.rename(entry.path, target)
        elif stat.S_ISDIR(target.lstat().st_mode):
            _merge(Path(entry.path), target)
        else:
            raise NotADirectoryError(f"{target} is there already, and is no directory.")


def _beside(destination: Path) -> Path:
    return destination.with_name(f".{destination.name[:100]}.{secrets.token_hex(6)}.part")


def _is_special(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
