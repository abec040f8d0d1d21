"""The shapes of requests that open, list and close sessions, and of those about uploads."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from server.api.models import Env, FileId, Request, Seconds, metadata_of, printable


class CreateSession(Request):
    user_id: Annotated[str, Field(min_length=1, max_length=256), AfterValidator(printable)] | None = Field(
        None,
        description="Your name for the end user: one live session per user; asking again gives the same one.",
    )
    image: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="A name from the server's list."
    )
    memory: Annotated[int, Field(ge=64 << 20)] | None = Field(None, description="Bytes, at least 64 MiB.")
    cpus: Annotated[float, Field(ge=0.05, allow_inf_nan=False)] | None = Field(
        None, description="CPUs, may be a fraction."
    )
    timeout: Seconds | None = Field(
        None, description="The lease: seconds the session lives after its last use."
    )
    env: Env | None = Field(None, description="Variables for every command of the session.")
    metadata: Annotated[dict[str, str], AfterValidator(metadata_of)] | None = Field(
        None, description="Labels of yours; the list can be filtered by them."
    )
    disk: Annotated[int, Field(ge=1 << 20)] | None = Field(
        None, description="Bytes that the workspace may hold, at least 1 MiB."
    )
    workspace: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] | None = Field(
        None, description="The name of a workspace that outlives the session; made if there is none."
    )
    persist: bool | None = Field(
        None, description="With user_id: keep the user's workspace; the server has a default."
    )
    snapshot: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = Field(
        None, description="Begin with the files, and the shell's directory and variables, of a snapshot."
    )
    datasets: Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=32)] | None = Field(
        None, description="Names of datasets, or ids of uploads, to be read below /data."
    )
    checkpoint: bool = Field(False, description="Keep a snapshot before each execution, for undo.")
    files: Annotated[list[FileId], Field(max_length=100)] | None = Field(
        None, description="Uploads to be put into /workspace, each under its name."
    )

    ephemeral: bool = Field(False, description="The session is over with its first command.")

    @model_validator(mode="after")
    def _consistent(self) -> CreateSession:
        if self.persist and self.user_id is None and self.workspace is None:
            raise ValueError("persist needs a user_id")
        if self.ephemeral and self.user_id is not None:
            raise ValueError("an ephemeral session is nobody's: it has no user_id")
        if len(set(self.datasets or ())) != len(self.datasets or ()):
            raise ValueError("datasets may be named once each")
        return self


def names_uploads(files: list[str] | None, datasets: list[str] | None) -> bool:
    """Whether some of it may be what was sent ahead."""
    return bool(files) or any(re.fullmatch("[0-9a-f]{32}", dataset) for dataset in datasets or ())


class Cleanup(Request):
    session_id: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        description="From /create_session."
    )


class Extend(Request):
    timeout: Seconds | None = Field(
        None, description="A new lease in seconds; without it the old one starts anew."
    )


class Pause(Request):
    cold: bool = Field(
        False, description="Give up the sandbox, too: what runs ends; files, directory and variables stay."
    )


class ListSessions(Request):
    user_id: Annotated[str, Field(max_length=256)] | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    cursor: Annotated[str, Field(pattern=r"^\d+(\.\d+)?/[0-9a-f]{32}$")] | None = None


class NoFields(Request):
    pass


class ListUploads(Request):
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    cursor: Annotated[str, Field(pattern=r"^\d+(\.\d+)?/[0-9a-f]{32}$")] | None = None


class ShowLimits(Request):
    user_id: Annotated[str, Field(min_length=1, max_length=256), AfterValidator(printable)] | None = Field(
        None, description="Also the quotas of this user."
    )


class Wait(Request):
    wait: Annotated[float, Field(ge=0, le=300, allow_inf_nan=False)] = Field(
        0.0, description="Seconds to wait in line for a place, where there is none; 300 at most."
    )
