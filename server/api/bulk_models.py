"""The shapes of requests about whole trees: archives, searches, watched directories."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from server.api.file_models import Name, OnePath, is_glob
from server.guest.globs import LONGEST

Format = Literal["tar", "tar.gz", "zip"]
_PATTERN = 4096


class OneDirectory(OnePath):
    """The workspace itself where nothing is said."""

    path: Name | None = Field(".", description="The directory; /workspace unless said otherwise.")

    @model_validator(mode="after")
    def _one(self) -> OneDirectory:
        if self.path_base64 is not None and "path" in self.model_fields_set:
            raise ValueError("send path or path_base64, one of them")
        return self


class GetArchive(OneDirectory):
    format: Format = Field("tar", description="What it shall be.")


class PutArchive(OneDirectory):
    format: Format | None = Field(None, description="What it is; without it the Content-Type tells.")


class Watch(OneDirectory):
    recursive: bool = Field(False, description="All directories below it too, 1000 at most.")


class SearchFiles(OneDirectory):
    pattern: Annotated[str, Field(min_length=1, max_length=_PATTERN)] = Field(
        description="The text to look for."
    )
    regex: bool = Field(False, description="The pattern is a regular expression of Python's.")
    ignore_case: bool = False
    glob: Annotated[str, Field(min_length=1, max_length=LONGEST), AfterValidator(is_glob)] | None = Field(
        None, description="Only files like this, such as *.py or src/**/*.py."
    )
    context: Annotated[int, Field(ge=0, le=20)] = Field(0, description="Lines around each match.")
    limit: Annotated[int, Field(ge=1, le=2000)] = Field(200, description="Matches at most.")
