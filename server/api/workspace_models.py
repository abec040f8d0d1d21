"""The shapes of requests about snapshots and workspaces."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from server.api.models import Request, printable


class TakeSnapshot(Request):
    name: Annotated[str, Field(min_length=1, max_length=128), AfterValidator(printable)] | None = Field(
        None, description="A name of yours."
    )


class Restore(Request):
    snapshot_id: Annotated[str, Field(max_length=64)] = Field(description="From .../snapshots.")


class Undo(Request):
    execution_id: Annotated[str, Field(max_length=100)] | None = Field(
        None, description="Go back to before this execution; otherwise to before the last one."
    )


class Fork(Request):
    count: Annotated[int, Field(ge=1, le=16)] = 1


class ListWorkspaces(Request):
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    cursor: Annotated[str, Field(min_length=1, max_length=512), AfterValidator(printable)] | None = None
