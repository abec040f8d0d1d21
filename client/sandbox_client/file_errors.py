"""What can go wrong with files. Those that the operating system has a name for are its errors too.

SandboxError
├── FileError               has .filename and .errno; an OSError too
│   ├── FileNotFound            a FileNotFoundError too
│   ├── FilePermissionDenied    a PermissionError too
│   ├── IsADirectory            an IsADirectoryError too
│   ├── NotADirectory           a NotADirectoryError too
│   ├── FileExists              a FileExistsError too
│   ├── NotARegularFile         a FIFO, socket or device
│   ├── DirectoryNotEmpty       ENOTEMPTY
│   ├── DiskFull                ENOSPC
│   ├── TooLarge                EFBIG
│   ├── OperationTimeout        a TimeoutError too
│   ├── InvalidPath             an InvalidRequest too
│   ├── PreconditionFailed      the file is another than `if_match` names; a Conflict too
│   ├── FileChanged             it changed while it was read or edited; a Conflict too
│   ├── TextNotFound            the text to replace is not in the file; a Conflict too
│   └── TextNotUnique           it is there more than once; has .count; a Conflict too
└── InvalidRequest
    ├── InvalidArchive          it is broken, or has a member that must not be unpacked
    └── RangeNotSatisfiable     the file ends before the range begins
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

from .base_errors import Conflict, InvalidRequest, SandboxError


class FileError(SandboxError, OSError):
    """Something about a file. Retry when the kind says so; `filename` is the path in the sandbox.

    That of a move or a copy has a `filename2`, the destination, unless that alone is at fault.
    """

    number: int | None = None

    def __init__(self, message: str, *, extras: Mapping[str, Any] | None = None, **said: Any) -> None:
        super().__init__(message, extras=extras, **said)
        self.errno = self.number
        self.strerror = message
        self.filename = self.extras.get("path")

    def __str__(self) -> str:
        names = [name for name in (self.filename, self.filename2) if name]
        shown = " -> ".join(name if name.isprintable() else repr(name) for name in names)
        return f"{shown}: {self.args[0]}" if shown else str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        names = {"filename": self.filename, "filename2": self.filename2}
        return type(self), self.args, {**self.__dict__, **names}


class FileNotFound(FileError, FileNotFoundError):
    """There is nothing at this path. Do not retry: list the directory, or write the file first."""

    number = errno.ENOENT


class FilePermissionDenied(FileError, PermissionError):
    """The sandbox's user may not do this, or the place is read-only. Do not retry: use another path."""

    number = errno.EACCES


class IsADirectory(FileError, IsADirectoryError):
    """A file is needed, and this is a directory. Do not retry: name a file."""

    number = errno.EISDIR


class NotADirectory(FileError, NotADirectoryError):
    """A directory is needed, and this is none. Do not retry: name a directory."""

    number = errno.ENOTDIR


class FileExists(FileError, FileExistsError):
    """Something is there already. Do not retry: take another name, or allow it to be replaced."""

    number = errno.EEXIST


class NotARegularFile(FileError):
    """A FIFO, a socket or a device cannot be read or written so. Do not retry: use a command for it."""

    number = errno.EINVAL


class DirectoryNotEmpty(FileError):
    """The directory is not empty. Do not retry: empty it, or delete with recursive=True."""

    number = errno.ENOTEMPTY


class DiskFull(FileError):
    """The session's disk is full, and nothing was changed. Safe to retry after deleting something."""

    number = errno.ENOSPC


class TooLarge(FileError):
    """The file is larger than may be. Do not retry: use a smaller one, or parts of it."""

    number = errno.EFBIG


class OperationTimeout(FileError, TimeoutError):
    """It took longer than the server allows. Look what was done, then retry with less at once."""

    number = errno.ETIMEDOUT


class InvalidPath(FileError, InvalidRequest):
    """The path is malformed, or leads out of /workspace, /tmp and /data. Do not retry: use another."""

    number = errno.EINVAL


class InvalidArchive(InvalidRequest):
    """The archive is broken, or has a member that must not be unpacked. Do not retry: mend it."""


class RangeNotSatisfiable(InvalidRequest):
    """The file ends before the range begins. Do not retry: ask for its size first."""


class PreconditionFailed(FileError, Conflict):
    """The file is another than `if_match` names; nothing was changed. Retry after reading it again."""

    number = errno.ESTALE


class FileChanged(FileError, Conflict):
    """The file changed while it was read or edited. Safe to retry."""

    number = errno.ESTALE


class TextNotFound(FileError, Conflict):
    """The text to replace is not in the file; nothing was changed. Do not retry: read the file first."""

    number = errno.EINVAL


class TextNotUnique(FileError, Conflict):
    """The text is there more than once; nothing was changed. Retry with more of what stands around it."""

    number = errno.EINVAL

    @property
    def count(self) -> int | None:
        """How often it is there."""
        found = self.extras.get("count")
        return found if isinstance(found, int) else None


FILE_CODES: Mapping[str, type[SandboxError]] = {
    "not_found": FileNotFound,
    "permission_denied": FilePermissionDenied,
    "is_directory": IsADirectory,
    "not_a_directory": NotADirectory,
    "not_a_regular_file": NotARegularFile,
    "already_exists": FileExists,
    "directory_not_empty": DirectoryNotEmpty,
    "invalid_path": InvalidPath,
    "invalid_archive": InvalidArchive,
    "disk_full": DiskFull,
    "too_large": TooLarge,
    "precondition_failed": PreconditionFailed,
    "range_not_satisfiable": RangeNotSatisfiable,
    "text_not_found": TextNotFound,
    "text_not_unique": TextNotUnique,
    "file_changed": FileChanged,
    "operation_timeout": OperationTimeout,
}
