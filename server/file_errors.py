"""What can go wrong with files, as kinds with stable codes.

SandboxError
|-- FileError               `path` is what the caller named
|   |-- NotFound
|   |-- PermissionDenied
|   |-- IsDirectory
|   |-- NotADirectory
|   |-- NotARegularFile     a FIFO, a socket, a device: nothing that could be read to an end
|   |-- AlreadyExists
|   |-- DirectoryNotEmpty
|   |-- InvalidArchive      no archive of that format, or a broken one
|   |-- InvalidPath         malformed, or it leads out of the places that callers may name
|   |-- DiskFull
|   |-- TooLarge
|   |-- PreconditionFailed  it is not what If-Match says
|   |-- RangeNotSatisfiable
|   |-- TextNotFound
|   |-- TextNotUnique
|   |-- FileChanged         it changed while it was read or edited
|   `-- OperationTimeout
"""

from __future__ import annotations

from typing import ClassVar

from server.errors import GuestUnavailable, Invalid, SandboxError, TooManyStreams

MOST_AT_ONCE = 8  # archives and searches of one session, and apart from them callers who watch
_KILLED = "The process that was to do that in the sandbox was killed: for want of memory, most likely."
_WORDS = {
    "invalid_pattern": ("pattern", "'pattern' is not a regular expression that Python understands."),
    "invalid_glob": ("glob", "'glob' is not a pattern for paths: use *, ?, [...] and **."),
}


class FileError(SandboxError):
    """`path` is what the caller named, as text."""

    words: ClassVar[str] = "The file could not be used."

    def __init__(self, path: str = "", **facts: object) -> None:
        super().__init__(self.words, **({"path": path} if path else {}), **facts)


class NotFound(FileError):
    code = "not_found"
    words = "There is no such file or directory."


class PermissionDenied(FileError):
    code = "permission_denied"
    words = "The sandbox's user may not do that there. /data is read-only."


class IsDirectory(FileError):
    code = "is_directory"
    words = "That is a directory, and a file is needed."


class NotADirectory(FileError):
    code = "not_a_directory"
    words = "That, or a part of its path, is not a directory."


class NotARegularFile(FileError):
    code = "not_a_regular_file"
    words = "That is neither a file nor a directory: its content cannot be sent."


class AlreadyExists(FileError):
    code = "already_exists"
    words = "Something of that name exists already. Choose another name, or allow it to be replaced."


class DirectoryNotEmpty(FileError):
    code = "directory_not_empty"
    words = 'The directory is not empty. To delete all that is in it, say "recursive".'


class InvalidPath(FileError):
    """The one answer for what is malformed and for what leads outside, whether or not anything is there."""

    code = "invalid_path"
    words = (
        "The path is malformed or leads outside. Paths are below /workspace, or absolute in /workspace, "
        "/tmp or /data, 4096 bytes at most; links may not lead out of these."
    )


class InvalidArchive(FileError):
    code = "invalid_archive"
    words = "That is no archive of this format, or a broken one. What came before the fault is unpacked."


class DiskFull(FileError):
    code = "disk_full"
    words = "The session's disk is full, or the file is larger than it may get. Delete something first."


class TooLarge(FileError):
    code = "too_large"
    words = "That is larger than the server handles."

    def __init__(self, path: str = "", limit: int | None = None) -> None:
        super().__init__(path, **({} if limit is None else {"limit": limit}))
        if limit is not None:
            self.detail = f"That is larger than the server transfers at once: {limit} bytes."


class PreconditionFailed(FileError):
    code = "precondition_failed"
    words = "The file is not, or no longer, the one that If-Match names. Read it again first."


class RangeNotSatisfiable(FileError):
    code = "range_not_satisfiable"
    words = "The file has no bytes in that range."


class TextNotFound(FileError):
    code = "text_not_found"
    words = "The file does not contain that text exactly as sent. Read it again first."


class TextNotUnique(FileError):
    code = "text_not_unique"
    words = "The text occurs more than once. Send more of what surrounds it, or say replace_all."


class FileChanged(FileError):
    code = "file_changed"
    words = "The file changed meanwhile. Nothing was written: read it again first."
    retryable = True


class OperationTimeout(FileError):
    code = "operation_timeout"
    words = "That took too long and was given up. Of a directory, a part may be done: look before retrying."


_KINDS: dict[str, type[FileError]] = {
    kind.code: kind
    for kind in (
        NotFound,
        PermissionDenied,
        IsDirectory,
        NotADirectory,
        NotARegularFile,
        AlreadyExists,
        DirectoryNotEmpty,
        InvalidPath,
        InvalidArchive,
        DiskFull,
        TooLarge,
        PreconditionFailed,
        TextNotFound,
        TextNotUnique,
        FileChanged,
        OperationTimeout,
    )
}


def error_of(code: str, path: str, count: object = None) -> SandboxError:
    """What a guest's word for a refusal means to a caller."""
    if code == "text_not_unique" and type(count) is int:
        return TextNotUnique(path, count=count)
    if code in _KINDS:
        return _KINDS[code](path)
    if code == "too_many_streams":
        return TooManyStreams(MOST_AT_ONCE, "session")
    if code in ("tool_failed", "out_of_memory"):
        return GuestUnavailable(_KILLED)
    if code in _WORDS:
        return Invalid(*_WORDS[code])
    return GuestUnavailable("The sandbox could not do that with its files.")
