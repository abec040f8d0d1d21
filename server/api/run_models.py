"""The shape of POST /run: a command, and the sandbox for it alone."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from server.api.models import Code, FileId


class RunOnce(Code):
    """A command in a sandbox of its own."""

    image: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="A name from the server's list."
    )
    memory: Annotated[int, Field(ge=64 << 20)] | None = Field(None, description="Bytes, at least 64 MiB.")
    cpus: Annotated[float, Field(ge=0.05, allow_inf_nan=False)] | None = Field(
        None, description="CPUs, may be a fraction."
    )
    disk: Annotated[int, Field(ge=1 << 20)] | None = Field(
        None, description="Bytes that the workspace may hold, at least 1 MiB."
    )
    snapshot: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = Field(
        None, description="Begin with the files, and the shell's directory and variables, of a snapshot."
    )
    datasets: Annotated[list[Annotated[str, Field(max_length=128)]], Field(max_length=32)] | None = Field(
        None, description="Names of datasets, or ids of uploads, to be read below /data."
    )
    files: Annotated[list[FileId], Field(max_length=100)] | None = Field(
        None, description="Uploads to be put into /workspace, each under its name."
    )

    @model_validator(mode="after")
    def _fitting(self) -> RunOnce:
        if len(set(self.datasets or ())) != len(self.datasets or ()):
            raise ValueError("datasets may be named once each")
        return self
