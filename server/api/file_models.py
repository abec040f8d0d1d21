"""The shapes of requests about files. A path is text, or any bytes as base64."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from server.api.models import Request
from server.guest.globs import LONGEST

_LONGEST_PATH = 4096  # bytes; what is longer is told to be no path of ours
_MOST_STARS = 32
_TEXT = 256 << 10
_WEEK = 7 * 86400

Mode = Annotated[str, Field(pattern=r"^0?[0-7]{3}$")]
Name = Annotated[str, Field(max_length=2 * _LONGEST_PATH)]


def decoded(text: str) -> bytes:
    """base64 of either alphabet, with or without its padding."""
    plain = text.rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise ValueError("must be base64") from exc


def _is_base64(text: str) -> str:
    decoded(text)
    return text


def is_glob(pattern: str) -> str:
    """Its length is looked at elsewhere. It is the guest that understands it: doing so takes a while."""
    if pattern.count("*") > _MOST_STARS:
        raise ValueError(f"may have {_MOST_STARS} stars at most")
    return pattern


Base64Name = Annotated[str, Field(max_length=2 * _LONGEST_PATH), AfterValidator(_is_base64)]


class OnePath(Request):
    path: Name | None = Field(None, description="Below /workspace, or absolute in /workspace, /tmp or /data.")
    path_base64: Base64Name | None = Field(None, description="Instead of path: its bytes.")

    @model_validator(mode="after")
    def _one(self) -> OnePath:
        if (self.path is None) == (self.path_base64 is None):
            raise ValueError("send path or path_base64, one of them")
        return self

    @property
    def place(self) -> bytes:
        return _bytes(self.path, self.path_base64)


class TwoPaths(Request):
    source: Name | None = None
    source_base64: Base64Name | None = None
    destination: Name | None = None
    destination_base64: Base64Name | None = None
    overwrite: bool = Field(False, description="Replace what is there.")

    @model_validator(mode="after")
    def _both(self) -> TwoPaths:
        for name in ("source", "destination"):
            if (getattr(self, name) is None) == (getattr(self, f"{name}_base64") is None):
                raise ValueError(f"send {name} or {name}_base64, one of them")
        return self

    @property
    def places(self) -> tuple[bytes, bytes]:
        return (
            _bytes(self.source, self.source_base64),
            _bytes(self.destination, self.destination_base64),
        )


def _bytes(text: str | None, encoded: str | None) -> bytes:
    return (text or "").encode() if encoded is None else decoded(encoded)


class ListFiles(OnePath):
    path: Name | None = Field(".", description="The directory.")
    depth: Annotated[int, Field(ge=1, le=64)] = Field(1, description="How many levels.")
    glob: Annotated[str, Field(max_length=LONGEST), AfterValidator(is_glob)] = Field(
        "", description="Only paths like this, such as **/*.py."
    )
    limit: Annotated[int, Field(ge=1, le=5000)] = Field(1000, description="Entries on a page at most.")
    cursor: Base64Name | None = Field(None, description="The next_cursor of the page before.")

    @model_validator(mode="after")
    def _one(self) -> ListFiles:
        if self.path_base64 is not None and "path" in self.model_fields_set:
            raise ValueError("send path or path_base64, one of them")
        return self


class StatFile(OnePath):
    follow: bool = Field(False, description="Of a link: what it leads to.")


class GetContent(OnePath):
    ticket: str | None = None


class PutContent(OnePath):
    mode: Mode | None = Field(None, description="Such as 0644; an existing file keeps its own without it.")
    parents: bool = Field(True, description="Make missing directories.")
    ticket: str | None = None


class DeleteFile(OnePath):
    recursive: bool = Field(False, description="With everything in it.")


class MakeDirectory(OnePath):
    parents: bool = Field(True, description="Make missing directories.")
    mode: Mode | None = Field(None, description="Such as 0755.")


class MoveFile(TwoPaths):
    """Renames, also to another filesystem."""


class CopyFile(TwoPaths):
    recursive: bool = Field(True, description="Copy directories with everything in them.")


class EditFile(OnePath):
    old: Annotated[str, Field(min_length=1, max_length=_TEXT)] = Field(description="The text to replace.")
    new: Annotated[str, Field(max_length=_TEXT)] = Field(description="What shall stand there.")
    replace_all: bool = Field(False, description="Wherever it occurs; else it must occur once.")


class NewFileUrl(OnePath):
    purpose: Literal["download", "upload"] = Field(alias="for", description="What it shall do, once.")
    expires_in: Annotated[int, Field(ge=1, le=_WEEK)] = Field(3600, description="Seconds.")
    mode: Mode | None = Field(None, description="Of what is uploaded.")

    @model_validator(mode="after")
    def _consistent(self) -> NewFileUrl:
        if self.mode is not None and self.purpose == "download":
            raise ValueError("a download has no mode")
        if not self.place:
            raise ValueError("name the file: its path is empty")
        return self


def number_of(mode: str | None) -> int | None:
    return None if mode is None else int(mode, 8)
