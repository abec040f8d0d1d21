"""Uploads put into the workspace of a session that is being opened, through its guest like any other file."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from server.errors import Invalid, SandboxError
from server.file_errors import AlreadyExists
from server.guest.protocol import PIECE
from server.guest_client import Sandbox
from server.guest_files_client import GuestFiles
from server.guest_files_client import Upload as Write
from server.sessions import Sessions
from server.store import Session
from server.upload_rows import Upload
from server.uploads import Apart, Uploads, distinct


@dataclass(frozen=True)
class Placed:
    upload: str
    name: str
    size: int


class Placing:
    def __init__(self, sessions: Sessions, uploads: Uploads, files: GuestFiles, apart: Apart) -> None:
        self._sessions = sessions
        self._uploads = uploads
        self._files = files
        self._apart = apart

    def wanted(self, tenant: str, uploads: list[str]) -> list[Upload]:
        """Asked before anything is opened."""
        return self._uploads.wanted(tenant, uploads, "files")

    def place(
        self, session: Session, uploads: list[Upload], close: bool, again: bool = False
    ) -> list[Placed]:
        """All of them; if one cannot be, the session is closed when nobody else can know of it.

        `again`: they may have been placed before, and worked on since; what is there stays.
        """
        names = distinct(upload.name for upload in uploads)
        placed = []
        expected = (AlreadyExists,) if again else ()
        try:
            with self._sessions.reached(session) as sandbox:
                for upload, name in zip(uploads, names, strict=True):
                    with contextlib.suppress(*expected):
                        self._place(sandbox, upload, name, create_only=again)
                    placed.append(Placed(upload.id, name, upload.size))
        except SandboxError:
            if close:
                with contextlib.suppress(SandboxError):  # what went wrong may have ended it already
                    self._sessions.close(session.tenant, session.id)
            raise
        return placed

    def _place(self, sandbox: Sandbox, upload: Upload, name: str, create_only: bool) -> None:
        try:
            source = os.open(self._uploads.path(upload.id), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as exc:
            raise Invalid("files", f"The upload {upload.id} was removed meanwhile.") from exc
        try:
            wanted = Write(name.encode(), None, False, create_only, match=None, limit=upload.size)
            writing = self._files.write(sandbox, wanted)
            try:
                while piece := self._apart(os.read, source, PIECE):
                    writing.give(piece)
                writing.finish()
            finally:
                writing.close()
        finally:
            os.close(source)
