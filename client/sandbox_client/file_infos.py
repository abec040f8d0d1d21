"""What the server tells about files and what is kept of them. Each can be read like a mapping too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Union

from . import paths
from .records import Record, known_fields, read_times


@dataclass(frozen=True)
class FileInfo(Record):
    """A file, directory or link in a sandbox, good wherever a path in the sandbox is wanted.

    `type` is "file", "directory", "symlink" or "other"; `mode` is like "0644"; `target` is what a link says.
    A name that is not UTF-8 has surrogates in it, as in `os.listdir`.
    """

    path: str
    name: str = ""
    type: str = "file"
    size: int = 0
    mode: str = ""
    modified_at: datetime | None = None
    etag: str = field(default="", repr=False)
    target: str | None = None

    @property
    def is_file(self) -> bool:
        """A regular file."""
        return self.type == "file"

    @property
    def is_directory(self) -> bool:
        """A directory."""
        return self.type == "directory"

    @property
    def is_link(self) -> bool:
        """A symbolic link."""
        return self.type == "symlink"


@dataclass(frozen=True)
class Artifact(Record):
    """A file that an execution left below /workspace/artifacts, good wherever a path is wanted."""

    path: str
    size: int = 0
    mime: str = ""
    sha256: str | None = None
    url: str = field(default="", repr=False)


@dataclass(frozen=True)
class FileEvent(Record):
    """A change below a watched directory.

    `type` is "created", "modified", "deleted", "moved" or "attributes"; "start" comes first: from now on
    changes are seen; "overflow" says that some were not, so look for yourself. A move has the `old_path` too
    where that was watched.
    """

    type: str
    path: str = ""
    old_path: str | None = None
    directory: bool = False


@dataclass(frozen=True)
class Match(Record):
    """A line that a search found; `line` and `column` count from 1."""

    path: str
    line: int = 0
    column: int = 0
    text: str = ""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class SearchResult(Record):
    """What a search found. `truncated`: there is more than was asked for."""

    matches: tuple[Match, ...] = ()
    files_searched: int = 0
    truncated: bool = False


@dataclass(frozen=True)
class Edited(Record):
    """How often a text was replaced, and the file as it is now."""

    path: str
    replacements: int = 0
    entry: FileInfo | None = None


@dataclass(frozen=True)
class Transfer(Record):
    """What was uploaded or downloaded, and where it is now.

    `skipped` are names of what was left out, or some of them, and `skipped_count` says how many there are. A
    download leaves out links that lead outside and what is neither file, directory nor link.
    """

    path: str
    files: int = 0
    directories: int = 0
    bytes: int = 0
    skipped: tuple[str, ...] = ()
    skipped_count: int = 0


@dataclass(frozen=True)
class SnapshotInfo(Record):
    """A workspace as it was. `kind` is "snapshot", or "checkpoint": taken before `execution_id`."""

    snapshot_id: str
    session_id: str | None = None
    name: str | None = None
    kind: str = "snapshot"
    execution_id: str | None = None
    size: int | None = None
    created_at: datetime | None = None


@dataclass(frozen=True)
class WorkspaceInfo(Record):
    """A workspace that outlives its sessions. `session_id` is the one that has it open."""

    name: str
    size: int | None = None
    created_at: datetime | None = None
    last_used_at: datetime | None = None
    session_id: str | None = None


@dataclass(frozen=True)
class UploadInfo(Record):
    """A file that was uploaded for sessions to come."""

    file_id: str
    name: str = ""
    size: int = 0
    mime: str = ""
    sha256: str | None = None
    expires_at: datetime | None = None


RemotePath = Union[str, bytes, "os.PathLike[str]", FileInfo, Artifact]


def file_info(answer: Mapping[str, Any]) -> FileInfo:
    """Read an entry."""
    known = known_fields(FileInfo, answer, required="path")
    read_times(known, "modified_at")
    known["path"] = paths.told(answer)
    if "path_base64" in answer:
        known["name"] = paths.last_name(known["path"])
    if "target" in known:
        known["target"] = paths.told(answer, "target")
    return FileInfo(**known)


def artifact(answer: Mapping[str, Any]) -> Artifact:
    """Read one of a result's."""
    known = known_fields(Artifact, answer, required="path")
    return Artifact(**{**known, "path": paths.told(answer)})


def file_event(answer: Mapping[str, Any]) -> FileEvent:
    """Read an event of a watch."""
    known = known_fields(FileEvent, answer, required="type")
    known["path"] = paths.told(answer)
    if "old_path" in answer or "old_path_base64" in answer:
        known["old_path"] = paths.told(answer, "old_path")
    return FileEvent(**known)


def search_result(answer: Mapping[str, Any]) -> SearchResult:
    """Read the answer to a search."""
    known = known_fields(SearchResult, answer)
    known["matches"] = tuple(map(_match, known.get("matches", ())))
    return SearchResult(**known)


def edited(answer: Mapping[str, Any]) -> Edited:
    """Read the answer to an edit."""
    known = known_fields(Edited, answer, required="path")
    if "entry" in known:
        known["entry"] = file_info(known["entry"])
    return Edited(**{**known, "path": paths.told(answer)})


def transfer(answer: Mapping[str, Any], path: str) -> Transfer:
    """Read the answer to an archive that was sent to a path."""
    known = known_fields(Transfer, answer)
    return Transfer(**{**known, "path": path, "skipped": tuple(map(_skipped, known.get("skipped", ())))})


def snapshot_info(answer: Mapping[str, Any]) -> SnapshotInfo:
    """Read a snapshot."""
    known = known_fields(SnapshotInfo, answer, required="snapshot_id")
    read_times(known, "created_at")
    return SnapshotInfo(**known)


def workspace_info(answer: Mapping[str, Any]) -> WorkspaceInfo:
    """Read a workspace."""
    known = known_fields(WorkspaceInfo, answer, required="name")
    read_times(known, "created_at", "last_used_at")
    return WorkspaceInfo(**known)


def upload_info(answer: Mapping[str, Any]) -> UploadInfo:
    """Read an upload."""
    known = known_fields(UploadInfo, answer, required="file_id")
    read_times(known, "expires_at")
    return UploadInfo(**known)


def _skipped(told: Any) -> str:
    return paths.told(told) if isinstance(told, Mapping) else str(told)


def _match(answer: Mapping[str, Any]) -> Match:
    known = known_fields(Match, answer, required="path")
    known.update(path=paths.told(answer), before=tuple(known.get("before", ())))
    return Match(**{**known, "after": tuple(known.get("after", ()))})
