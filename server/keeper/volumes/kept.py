"""What a volume's main shell was like, in the file `shell` beside its files.

Pausing writes it and going cold, when it is all that is left of the shell, brings it to disk: a pause costs
no flush. Whole or not at all: it is written under another name first. No link is followed on the way.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_NAME = "shell"
_DRAFT = "shell.new"
_PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def write(volume: Path, state: bytes) -> None:
    """What does not fit on the disk is not kept; nor is what was kept before, which is not of now."""
    with contextlib.suppress(FileNotFoundError), _opened(volume, os.O_DIRECTORY) as place:
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_DRAFT, dir_fd=place)  # a crash may have left it
            with _opened(_DRAFT, os.O_WRONLY | os.O_CREAT | os.O_EXCL, place) as file:
                left = memoryview(state)
                while left:
                    left = left[os.write(file, left) :]
            os.rename(_DRAFT, _NAME, src_dir_fd=place, dst_dir_fd=place)
        except OSError:
            _forget(place)


def settle(volume: Path) -> bool:
    """Bring it to disk. False if there is nothing, or it cannot be brought there."""
    with contextlib.suppress(FileNotFoundError), _opened(volume, os.O_DIRECTORY) as place:
        try:
            with _opened(_NAME, os.O_RDONLY, place) as file:
                os.fsync(file)
                is_there = os.fstat(file).st_size > 0
            os.fsync(place)
            return is_there
        except OSError:
            _forget(place)
    return False


def read(volume: Path) -> bytes:
    try:
        with _opened(volume, os.O_DIRECTORY) as place, _opened(_NAME, os.O_RDONLY, place) as file:
            return b"".join(iter(lambda: os.read(file, 1 << 16), b""))
    except OSError:
        return b""


def _forget(place: int) -> None:
    for name in (_DRAFT, _NAME):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=place)


@contextlib.contextmanager
def _opened(path: Path | str, flags: int, place: int | None = None) -> Iterator[int]:
    file = os.open(path, flags | _PLAIN, 0o600, dir_fd=place)
    try:
        yield file
    finally:
        os.close(file)
