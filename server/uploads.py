"""Uploads: files that a tenant sends ahead, to be put into sessions that it opens later.

They lie under their ids in a directory of the web's own, until they are deleted or too old.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from server.as_owner import as_owner_of
from server.config import Config
from server.errors import Invalid, StoreUnavailable
from server.mimes import ANYTHING, mime_of
from server.upload_errors import TooManyUploads, UploadNotFound
from server.upload_rows import SMALLEST, Lost, Upload, UploadRows

MOST_FILES = 100
_LONGEST_NAME = 255
_STEP = 8 << 20  # bytes reserved at a time where the length is not told
_SILENCE = 600.0  # seconds after which a call that nothing was heard of is taken for dead
_HEARTBEAT = 30.0
_MODE = 0o644  # a sandbox that it is mounted into reads it as another user; the directory keeps others out
_MIME = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,63}")
_MISLEADING = {*"\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"}


class TooLarge(Exception):
    """A file is larger than any may be."""


class TooSlow(Exception):
    """It was taken for dead, and what had come of it was removed."""


class Apart(Protocol):
    """Carries out what may take long on disk, where it holds nobody up."""

    def __call__(self, work: Callable[..., Any], *args: Any) -> Any: ...


def at_once(work: Callable[..., Any], *args: Any) -> Any:
    return work(*args)


class Uploads:
    def __init__(
        self, config: Config, rows: UploadRows, clock: Callable[[], float], apart: Apart = at_once
    ) -> None:
        self._config = config
        self._rows = rows
        self._clock = clock
        self._apart = apart

    def path(self, upload: str) -> Path:
        return path_of(self._config, upload)

    def receive(self, tenant: str, length: int | None, key: str | None) -> Arrival:
        """For what is about to come; `length` is what was told of it."""
        known = key is not None and self._rows.answered(tenant, key, self._clock())
        return Arrival(self._config, self._rows, self._clock, self._apart, tenant, key, known).begun(length)

    def find(self, tenant: str, upload: str) -> Upload:
        found = self._rows.find(tenant, [upload], self._clock()).get(upload)
        if found is None:
            raise UploadNotFound
        return found

    def wanted(self, tenant: str, uploads: list[str], field: str) -> list[Upload]:
        """All of them, in that order; the field is named if one is not there."""
        found = self._rows.find(tenant, uploads, self._clock()) if uploads else {}
        for upload in uploads:
            if upload not in found:
                raise Invalid(field, f"There is no upload {upload}, or no longer. Send it with POST /upload.")
        return [found[upload] for upload in uploads]

    def list(self, tenant: str, after: str, limit: int) -> tuple[list[Upload], str | None]:
        created_at, _, last = after.partition("/")
        found = self._rows.list(tenant, (float(created_at or 0), last), limit, self._clock())
        return found, f"{found[-1].created_at!r}/{found[-1].id}" if len(found) == limit else None

    def delete(self, tenant: str, upload: str) -> None:
        self.find(tenant, upload)
        if self._rows.withdraw(upload, self._clock()):
            self._apart(_remove, [self.path(upload)])


class Arrival:
    """The files of one request, one after the other. Kept all together at the end, or none of them.

    Of a request that was received before, under the same key, only the digests are of interest.
    """

    def __init__(
        self,
        config: Config,
        rows: UploadRows,
        clock: Callable[[], float],
        apart: Apart,
        tenant: str,
        key: str | None,
        known: bool,
    ) -> None:
        self._config = config
        self._rows = rows
        self._clock = clock
        self._apart = apart
        self._tenant = tenant
        self._key = key
        self._known = known
        self._call = secrets.token_hex(16)
        self._step = 0
        self._reserved = self._taken = 0  # as they count, without the file that is being written
        self._heard_at = clock()
        self._file: _File | None = None
        self._files: list[Upload] = []
        self._made: list[Path] = []

    def begun(self, length: int | None) -> Arrival:
        self._step = _STEP if length is None else 0
        self._reserve(length or 0)
        return self

    def open(self, name: str, mime: str) -> None:
        upload = secrets.token_hex(16)
        path = path_of(self._config, upload)
        name = safe_name(name)
        kind = mime.partition(";")[0].strip().lower()
        kind = kind if _MIME.fullmatch(kind) and kind != ANYTHING else mime_of(name)
        self._make_room(SMALLEST)
        if not self._known:
            self._rows.announce(self._call, upload, self._tenant, self._clock())
            self._made.append(path)
        self._file = self._apart(_File, upload, name, kind, None if self._known else path)

    def write(self, data: bytes) -> None:
        file = self._file
        assert file is not None, "open comes first"
        if file.size + len(data) > self._config.upload_limit:
            raise TooLarge
        self._make_room(max(SMALLEST, file.size + len(data)))
        self._say_alive()
        self._apart(file.write, data)

    def close(self) -> None:
        file = self._file
        assert file is not None, "open comes first"
        digest = self._apart(file.close)
        self._taken += max(SMALLEST, file.size)
        self._file, now = None, self._clock()
        until = now + self._config.upload_age
        self._files.append(
            Upload(file.upload, self._tenant, file.name, file.mime, file.size, digest, now, until)
        )

    def keep(self) -> list[Upload]:
        """All of it is on disk. What is answered is what a first call of the same key has brought."""
        if not self._files:
            raise Invalid("file", "Send at least one file.")
        facts = [(file.name, file.mime, file.size, file.sha256) for file in self._files]
        fingerprint = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        files, self._files = self._files, []
        try:
            kept = self._rows.keep(self._call, self._tenant, files, self._key, fingerprint, self._clock())
        except Lost as exc:
            raise TooSlow from exc
        if kept is files:
            self._made = []
        return kept

    def drop(self) -> None:
        """Whatever was not kept. Doing it again does nothing."""
        if self._file is not None:
            self._apart(self._file.abandon)
            self._file = None
        if not self._known:
            self._rows.drop_call(self._call)
        made, self._made = self._made, []
        self._apart(_remove, made)

    def _make_room(self, size: int) -> None:
        """For a file of this size: some more than that where more may come, else just enough."""
        needed = self._taken + size
        if needed <= self._reserved:
            return
        try:
            self._reserve(needed + self._step)
        except TooManyUploads:
            if not self._step:
                raise
            self._reserve(needed)

    def _reserve(self, size: int) -> None:
        if self._known:
            return
        now, most = self._clock(), self._config.uploads
        self._rows.reserve(self._call, self._tenant, size, now, now + _SILENCE, most)
        self._reserved, self._heard_at = size, now

    def _say_alive(self) -> None:
        now = self._clock()
        if self._known or abs(now - self._heard_at) < _HEARTBEAT:
            return
        try:
            self._rows.touch(self._call, now + _SILENCE)
        except Lost as exc:
            raise TooSlow from exc
        self._heard_at = now


class _File:
    """One file on its way to disk, or only to its digest.

    Whoever is interrupted closes it while it may still be written by another thread: the buffer has a lock.
    """

    def __init__(self, upload: str, name: str, mime: str, path: Path | None) -> None:
        self.upload, self.name, self.mime = upload, name, mime
        self.size = 0
        self._digest = hashlib.sha256()
        self._file: BinaryIO | None = None
        if path is not None:
            with _room():
                self._file = path.open("xb")
                os.fchmod(self._file.fileno(), _MODE)

    def write(self, data: bytes) -> None:
        self.size += len(data)
        self._digest.update(data)
        if self._file is not None:
            with _room():
                self._file.write(data)

    def close(self) -> str:
        file, self._file = self._file, None
        if file is not None:
            with _room(), file:
                file.flush()
                os.fsync(file.fileno())
        return self._digest.hexdigest()

    def abandon(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # what could not be written is not wanted any more
                self._file.close()


@contextlib.contextmanager
def _room() -> Any:
    try:
        yield
    except OSError as exc:
        raise StoreUnavailable("The server has no room for the file right now. Try again later.") from exc


def path_of(config: Config, upload: str) -> Path:
    return config.uploads_dir / upload


def safe_name(name: str) -> str:
    """The last part of any system's path, without what does not show or misleads, cut before its suffix."""
    last = re.split(r"[/\\]", name)[-1]
    shown = "".join(
        one
        for one in last
        if unicodedata.category(one) not in ("Cc", "Cs", "Zl", "Zp") and one not in _MISLEADING
    ).strip()
    if shown in ("", ".", ".."):
        return "file"
    stem, suffix = os.path.splitext(shown)
    suffix = suffix if len(suffix.encode()) <= _LONGEST_NAME // 4 else ""
    stem = shown[: -len(suffix)] if suffix else shown
    return stem.encode()[: _LONGEST_NAME - len(suffix.encode())].decode(errors="ignore") + suffix


def distinct(names: Iterable[str]) -> list[str]:
    """Names for one directory: a second `a.txt` becomes `a (2).txt`."""
    taken: dict[str, None] = {}
    for name in names:
        stem, suffix = os.path.splitext(name)
        number, chosen = 1, name
        while chosen in taken:
            number += 1
            mark = f" ({number}){suffix}"
            chosen = stem.encode()[: _LONGEST_NAME - len(mark.encode())].decode(errors="ignore") + mark
        taken[chosen] = None
    return list(taken)


def sweep(config: Config, rows: UploadRows, now: float) -> None:
    """What is too old goes, and what has a file and no row, or a row and no file.

    The order matters: a file that is here has had its row before.
    """
    with as_owner_of(config.uploads_dir):
        found = set(os.listdir(config.uploads_dir))
        rows.drop_stale(now)
        known = rows.all()
        for name in found - known.keys():
            with contextlib.suppress(IsADirectoryError):  # none of ours, nor of any harm
                _remove([path_of(config, name)])
        for upload, whole in known.items():
            if whole and not path_of(config, upload).exists():
                rows.delete(upload)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
